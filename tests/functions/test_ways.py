"""A warm message passes few files and few calls: who reads a handler's way has that much to hold in mind.

What is more than a ceiling is looked at: one thought in two files, or a wrapper of a wrapper.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from functions.broker import handler as broker
from functions.exchange import handler as exchange
from functions.links import handler as links
from functions.proxy import handler as proxy
from functions.splitter import handler as splitter
from sluice.aws.clients import long_polling_sqs_client, now_ms, quick_dynamodb_client, quick_sqs_client
from sluice.aws.rendezvous.offers import DynamoProxyPools
from sluice.rendezvous.mailbox import PREFIX
from sluice.rendezvous.protocol.matching import Pool, WaitingProxy
from tests.functions.conftest import CONTEXT, Surroundings
from tests.functions.test_federation_handlers import federation  # noqa: F401 - a fixture
from tests.functions.test_splitting_handlers import splitting, url_of  # noqa: F401 - a fixture
from tests.functions.ways import Inline, SideBySide, way_of
from tests.traffic import answer

OFFER = "1.0\n" + json.dumps({"offer": json.dumps({"type": "offer", "sdp": "v=0"})})


def test_a_warm_offers_way(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offer that finds its proxy: the second of its environment."""
    broker.dependencies.cache_clear()
    made, reporter = broker.dependencies()
    broker.dependencies.cache_clear()
    inline = Inline()
    made = replace(made, site=replace(made.site, executor=inline))
    monkeypatch.setattr(broker, "dependencies", lambda: (made, replace(reporter, executor=inline)))
    mailbox = surroundings.sqs.create_queue(QueueName="mailbox")["QueueUrl"]
    pools = DynamoProxyPools(surroundings.dynamodb, "t", lambda: 0.5)

    def event(client_id: str) -> dict[str, Any]:
        pools.add_proxy(
            WaitingProxy(
                poll_id=f"poll-{client_id}",
                sid=client_id,
                pool=Pool.UNRESTRICTED,
                clients=0,
                polled_at_ms=now_ms(),
                mailbox=mailbox,
            )
        )
        surroundings.send(surroundings.offers_url, OFFER, {"ClientID": client_id})
        return surroundings.event(surroundings.offers_url)

    broker.handler(event("first"), CONTEXT)
    second, requests = event("second"), []
    for client in (quick_sqs_client(), quick_dynamodb_client()):
        client.meta.events.register("before-call.*", lambda model, **_: requests.append(model.name))
    way = way_of(lambda: broker.handler(second, CONTEXT))
    assert sorted(requests[:3]) == ["CreateQueue", "PutItem", "Query"]  # side by side
    assert requests[3:5] == ["SendMessage", "PutItem"]
    assert sorted(requests[5:]) == ["DeleteItem", "SendMessage"]  # side by side
    assert len(surroundings.messages(mailbox)) == 2
    assert len(way.files) <= 12, sorted(way.files)
    assert len(way.deepest) <= 9, way.deepest


def test_an_answer_is_sent_after_five_calls(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the offer's arrival at the broker on, where the proxy's poll is held and the environments are warm."""
    for handler in (broker, proxy):
        handler.dependencies.cache_clear()
    (serves, reporter), site = broker.dependencies(), proxy.dependencies()
    chain = SideBySide()
    calls: list[tuple[int, str, object]] = []
    beside = replace(serves.site, executor=chain)
    monkeypatch.setattr(
        broker, "dependencies", lambda: (replace(serves, site=beside), replace(reporter, executor=chain))
    )
    volunteers = replace(site.volunteers, held_proxies_min=10)
    monkeypatch.setattr(proxy, "dependencies", lambda: replace(site, volunteers=volunteers))

    def note(model: Any, params: Mapping[str, Any], **_: Any) -> None:
        """Count a call, and give the held poll its offer where it receives."""
        if model.name == "ReceiveMessage":
            calls.clear()
            chain.calls = 0
            broker.handler(offered, CONTEXT)
            return
        chain.calls += 1
        calls.append((chain.calls, model.name, params["body"]))

    for client in (quick_sqs_client(), quick_dynamodb_client(), long_polling_sqs_client()):
        client.meta.events.register("before-call.*", note)
    for client_id in ("first", "second"):
        surroundings.send(surroundings.offers_url, OFFER, {"ClientID": client_id})
        offered = surroundings.event(surroundings.offers_url)
        poll = {"Sid": client_id, "Version": "1.3", "NAT": "unrestricted", "AcceptedRelayPattern": "$"}
        given = proxy.handler(http_event("/proxy", poll), CONTEXT)
        assert json.loads(given["body"])["Status"] == "client match"
        [chain.calls] = [number for number, name, body in calls if name == "SendMessage" and PREFIX in str(body)]
        answered = {"Sid": client_id, "Version": "1.3", "Answer": answer("second")}
        assert json.loads(proxy.handler(http_event("/answer", answered), CONTEXT)["body"]) == {"Status": "success"}
    number, name, _ = calls[-1]
    assert name == "SendMessage"
    assert number <= 5, [call[:2] for call in calls]


def http_event(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What a function URL gives of a request."""
    context = {"http": {"method": "POST", "sourceIp": "192.0.2.1"}}
    return {"rawPath": path, "headers": {}, "requestContext": context, "body": json.dumps(body)}


def test_a_warm_messages_way_through_the_splitter(splitting: Surroundings) -> None:  # noqa: F811 - the fixture
    """A message that no session takes: the second of its environment."""
    splitting.send(splitting.offers_url, "first", {"client": "b"})
    splitter.handler(splitting.event(splitting.offers_url), CONTEXT)
    splitting.send(splitting.offers_url, "second", {"client": "b"})
    second = splitting.event(splitting.offers_url)
    way = way_of(lambda: splitter.handler(second, CONTEXT))
    assert [message["Body"] for message in splitting.messages(url_of(splitting, "main"))] == ["first", "second"]
    assert len(way.files) <= 11, sorted(way.files)
    assert len(way.deepest) <= 7, way.deepest


def test_a_warm_messages_way_through_the_exchange(federation: Surroundings) -> None:  # noqa: F811 - the fixture
    """A message that one queue is bound for: the second of its environment."""
    links.handler({"op": "bind", "exchange": "amq.direct", "queue": "plain", "key": "a"}, CONTEXT)
    for body in ("first", "second"):
        federation.send(url_of(federation, "ingress"), body, {"exchange": "amq.direct", "routing-key": "a"})
        event = federation.event(url_of(federation, "ingress"))
        way = way_of(partial(exchange.handler, event, CONTEXT))
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["first", "second"]
    assert len(way.files) <= 12, sorted(way.files)
    assert len(way.deepest) <= 6, way.deepest
