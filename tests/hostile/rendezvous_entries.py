"""The rendezvous' entries: offers over SQS, ticks, events to be counted, and all that comes over HTTP.

Production's handlers and shells over fakes; what they send has to be what SQS takes.
"""

import base64
import json
import re
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from functions.broker import handler as broker
from functions.client import handler as client
from functions.counters import handler as counters
from functions.proxy import handler as proxy
from sluice.aws.records import Reporter
from sluice.message import Value
from sluice.rendezvous.broker import Broker
from sluice.rendezvous.http import ClientSite, ProxySite
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.protocol.matching import Pool, WaitingProxy
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    DEFAULT_FINGERPRINT,
    RelayPattern,
    index_by_fingerprint,
    parse_bridges,
)
from sluice.rendezvous.volunteers import Volunteers, hash_sid
from tests.fakes import FakeMailboxStore, FakeQueues, FakeStatisticsStore, Meeting, url
from tests.functions.conftest import CONTEXT
from tests.functions.ways import Inline
from tests.hostile.events import Given, became, event, put_together, record, reporter
from tests.hostile.strict_sqs import StrictClient, as_json, refusal

BRIDGES = index_by_fingerprint(
    parse_bridges(
        json.dumps({"displayName": "d", "webSocketAddress": "wss://r.example/", "fingerprint": DEFAULT_FINGERPRINT})
    )
)
OFFERS = "offers"
CLIENT = {"ClientID": Value("String", "c")}
SID = "the proxy that holds a poll"
MAX_RESPONSE_BYTES = 6 * 2**20  # of Lambda


class StrictQueues(FakeQueues):
    """Takes nothing that SQS would refuse."""

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        assert refusal({"MessageBody": body}) is None
        super().send(url, body, attributes=attributes, delay_s=delay_s)


@dataclass
class Rendezvous(Meeting):
    """A site's broker and proxy function with all that they talk to. One proxy waits that any client may have."""

    queues: FakeQueues = field(default_factory=StrictQueues)
    executor: Executor = field(default_factory=Inline)
    statistics: FakeStatisticsStore = field(default_factory=FakeStatisticsStore)
    client: StrictClient = field(default_factory=StrictClient)
    proxies: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in range(self.proxies):
            self.enter(f"poll{number}", sid=hash_sid(SID + "'" * number))

    def enter(self, poll_id: str, *, sid: str) -> WaitingProxy:
        """A proxy whose poll somebody else holds."""
        waiting = WaitingProxy(
            poll_id=poll_id,
            sid=sid,
            pool=Pool.UNRESTRICTED,
            clients=0,
            polled_at_ms=self.clock.ms,
            mailbox=self.queues.create(f"mailbox-{poll_id}", {}),
        )
        self.pools.add_proxy(waiting)
        return waiting

    def broker(self) -> tuple[Broker, Reporter]:
        return Broker(site=self.dependencies(), bridges=BRIDGES), reporter(self.client)

    def sites(self) -> tuple[ProxySite, ClientSite]:
        site, mailboxes, statistics = self.dependencies(), cast("Any", FakeMailboxStore()), cast("Any", self.statistics)
        mailbox = Mailbox(site, mailboxes)
        volunteers = Volunteers(
            site=site,
            mailbox=mailbox,
            allowed_relay_pattern=RelayPattern.parse("snowflake.torproject.net$"),
            held_proxies_min=4,
            held_proxies_max=10,
            delete_message=lambda _: None,
        )
        proxies = ProxySite(site=site, volunteers=volunteers, statistics=statistics)
        return proxies, ClientSite(site=site, mailbox=mailbox, bridges=BRIDGES)

    def take(self, queue: str, *messages: dict[str, Any]) -> list[str]:
        """What the broker function makes of a batch, beside what clients and proxies get."""
        with put_together(broker, self.broker()):
            return list(became(broker.handler(event(*messages), CONTEXT), self.client))

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the client function answers to an offer, and the proxy function to all else."""
        proxies, clients = self.sites()
        if str(request.get("rawPath", "")).startswith(("/client", "/amp")):
            with put_together(client, clients):
                response = client.handler(dict(request), CONTEXT)
        else:
            with put_together(proxy, proxies):
                response = proxy.handler(dict(request), CONTEXT)
        assert len(as_json(response)) < MAX_RESPONSE_BYTES
        return response


def offer(body: str, attributes: Given | None = None) -> str:
    """A client's message: a reply, a letter to a proxy, a dead letter, or nothing where it has no name to reply to."""
    site = Rendezvous()
    said = site.take(OFFERS, record(body, CLIENT if attributes is None else attributes, queue=OFFERS))
    for queue, bodies in site.queues.queues.items():
        what = "reply" if ANSWER_QUEUE_PREFIX in queue else "letter"
        said += [f"{what}: {_shown(text)}" for text in bodies]
    assert len(said) <= 1, said  # and never both
    return said[0] if said else "dropped"


def _shown(text: str) -> str:
    """A reply as it is; of a letter what the proxy is told beside the description, which may be long."""
    letter = json.loads(text)
    if "for" not in letter:
        return text
    return json.dumps({name: letter[name] for name in ("for", "nat", "relay")})


def counted(body: str) -> str:
    """What is told in place of an event: how many counts it made, or that it was not read."""
    statistics, publisher = FakeStatisticsStore(), SimpleNamespace(publish=len)
    item = {"pk": {"S": "told"}, "sk": {"S": "ulid"}, "events": {"S": f"[{body}]"}}
    change = {
        "eventName": "INSERT",
        "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/t/stream/label",
        "dynamodb": {"Keys": item, "NewImage": item, "SequenceNumber": "1"},
    }
    with put_together(counters, (publisher, statistics)), patch.object(counters.logger, "warning") as warned:
        counters.handler(event(change), CONTEXT)
    if warned.called:
        assert sum(statistics.counts.values()) == 0
        return f"not read: {warned.call_args.kwargs['reason']}"
    return f"counted: {sum(statistics.counts.values())}"


def request(
    method: str, path: str, body: bytes | str = b"", *, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A function URL's event. Lambda encodes a body that isn't text by its type."""
    coded = isinstance(body, bytes)
    return {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": dict(headers or {}),
        "requestContext": {"http": {"method": method, "path": path, "sourceIp": "203.0.113.77"}},
        "body": base64.b64encode(body).decode() if isinstance(body, bytes) else body,
        "isBase64Encoded": coded,
    }


def poll(body: bytes) -> str:
    """A volunteer's poll."""
    return answered(request("POST", "/proxy", body), proxies=0)


def answer(body: bytes) -> str:
    """A proxy's answer; a client waits for one by the proxy SID."""
    return answered(request("POST", "/answer", body))


def amp(path: str) -> str:
    """What comes through an AMP cache. The page is taken apart again."""
    site = Rendezvous(proxies=0)
    response = site.ask(request("GET", f"/amp/client/{path}"))
    assert response["statusCode"] == 200  # anything else a cache doesn't pass on
    words = "".join(re.findall(r"<pre>\n(.*?)\n</pre>", response["body"], re.DOTALL)).split()
    text = "".join(words)
    assert text[:1] == "0"
    return base64.b64decode(text[1:], validate=True).decode()


def http(said: str) -> str:
    """A whole request: `{method, path, headers, body, base64}`."""
    given = json.loads(said)
    asked = request(given["method"], given["path"], given.get("body", ""), headers=given.get("headers"))
    asked["isBase64Encoded"] = given.get("base64", False)
    return answered(asked, proxies=0)


def answered(asked: Mapping[str, Any], *, proxies: int = 1) -> str:
    """Status and body, with a client that waits where a proxy is there to have been matched with it."""
    site = Rendezvous(proxies=proxies)
    if proxies:
        body = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})
        site.take(OFFERS, record(body, CLIENT, queue=OFFERS))
    response = site.ask(asked)
    heard = site.queues.queues[url(ANSWER_QUEUE_PREFIX + "c")]
    delivered = f", and the client has it: {heard[0]}" if heard else ""
    return f"{response['statusCode']} {response['body']}".strip() + delivered
