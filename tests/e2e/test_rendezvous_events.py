"""Rendezvous events as deployed: from what happens, by the table's stream, to the exchange and to the statistics."""

import asyncio
import json
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from sluice.aws.rendezvous.clients import ClientCredentials, ClientQueues, open_client
from sluice.aws.rendezvous.event_publisher import TableEventPublisher
from sluice.aws.rendezvous.offers import DynamoProxyPools
from sluice.federation.operations import BindQueue, ShowSite, SweepSite, UnbindQueue
from sluice.operator.functions import FEDERATION, SWEEPER, ControlClient
from sluice.peers.methods import Denied, exchange_over_sqs
from sluice.rendezvous.counts.events import Event, OfferEvent, PollEvent, parse_event
from sluice.rendezvous.mailbox import SHORTEST_WAIT_MS
from sluice.rendezvous.operations import LEAST_S, SweepAnswers
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import HOLD_MS, Pool
from sluice.times import DAY_MS, format_day, parse_time_ms
from sluice.ulids import ULID, derive_ulid
from tests.deployed import Deployed
from tests.traffic import Proxies, answer, offer_body

WITHIN_S = 120  # twice of it is less than what a test may take
BEGAN_MS = time.time_ns() // 1_000_000
EXCHANGE = "events"
KEY = "rendezvous.#"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Site:
    """The deployed site, and a queue that gets every event of its rendezvous."""

    def __init__(self, deployed: Deployed) -> None:
        self.deployed = deployed
        self.control = ControlClient.connect(deployed.connection, FEDERATION)
        self.sweeper = ControlClient.connect(deployed.connection, SWEEPER)
        self.control.ask(SweepSite())  # makes what is declared; by itself, within a minute
        self.queue = f"sluice-queue-{uuid.uuid4().hex[:8]}"
        self.url = deployed.make_queue(self.queue)
        self.control.ask(BindQueue(exchange=EXCHANGE, queue=self.queue, key=KEY))
        time.sleep(1.1)  # functions look for a new version every second

    @property
    def tag(self) -> str:
        return self.control.ask(ShowSite()).tag

    def forget(self) -> None:
        self.control.ask(UnbindQueue(exchange=EXCHANGE, queue=self.queue, key=KEY))
        self.deployed.sqs.delete_queue(QueueUrl=self.url)

    def messages(self, *wanted: tuple[str, str], since_ms: int) -> list[dict[str, Any]]:
        """Those of what happened since, until there is one of each kind and outcome; one told twice is one."""
        by_id: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + WITHIN_S
        while not set(wanted) <= set(map(_ending, by_id.values())):
            assert time.monotonic() < deadline, Counter(map(_ending, by_id.values()))
            # An offer without an answer is told of when its queue is swept: by the schedule two minutes later.
            self.sweeper.ask(SweepAnswers(older_than_s=LEAST_S))
            received = self.deployed.sqs.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=2, MessageAttributeNames=["All"]
            ).get("Messages", [])
            for message in received:
                self.deployed.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                event = json.loads(message["Body"])
                # An offer that is told of now may be an earlier test's.
                if parse_time_ms(event["at"]) - event.get("waited_ms", 0) >= since_ms:
                    by_id[event["id"]] = dict(message)
        return list(by_id.values())

    def end_proxy_environments(self) -> None:
        """Shut down the proxy function's environments, which publish the polls that they hold back."""
        function = self.deployed.function_name("Proxy")
        memory_mb = self.deployed.functions.get_function_configuration(FunctionName=function)["MemorySize"]
        self.deployed.functions.update_function_configuration(FunctionName=function, MemorySize=memory_mb + 1)

    def tell(self, *events: Event) -> None:
        """Tell of events as functions do."""
        teller = TableEventPublisher(
            table=self.deployed.deployment.table_name,
            site="elsewhere",
            client=lambda: self.deployed.dynamodb,
            now_ms=now_ms,
            new_id=lambda: uuid.uuid4().hex,
        )
        assert teller.publish(events) == 0

    def page_with(self, path: str, *starts: str) -> str:
        """The page, once it has lines that begin so."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            page = asyncio.run(self._page(path))
            if all(any(line.startswith(start) for line in page.splitlines()) for start in starts):
                return page
            assert time.monotonic() < deadline, page
            time.sleep(1)

    async def _page(self, path: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(self.deployed.broker_url + path) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == "*"
            return await response.text()


def _ending(message: dict[str, Any]) -> tuple[str, str]:
    body = json.loads(message["Body"])
    return body["kind"], body["outcome"]


@pytest.fixture
def site(deployed: Deployed) -> Iterator[Site]:
    made = Site(deployed)
    yield made
    made.forget()


async def nobody_waits(pools: DynamoProxyPools) -> None:
    while any(pools.read_profiles(pool, now_ms=now_ms(), shards=1) for pool in Pool):
        await asyncio.sleep(0.2)


async def somebody_waits(pools: DynamoProxyPools) -> None:
    while not pools.read_profiles(Pool.UNRESTRICTED, now_ms=now_ms(), shards=1):
        await asyncio.sleep(0.2)


async def a_scripted_minute(deployed: Deployed, site: Site) -> int:
    """An offer denied, one answered, one that nobody answers, and a poll to which nobody comes. When it began."""
    pools = DynamoProxyPools(deployed.dynamodb, deployed.deployment.waiting_table_name, random.random)
    credentials = ClientCredentials.parse(deployed.client_sqscreds)
    client = open_client(credentials, region=deployed.region, endpoint_url=deployed.endpoint)
    async with aiohttp.ClientSession() as session, ClientQueues(client, deployed.offers_queue_url) as queues:
        proxies, exchange = Proxies(session, deployed.broker_url), exchange_over_sqs(queues)
        await nobody_waits(pools)
        # An event may sum up polls that ended alike: none of an earlier test's may be among this one's.
        await asyncio.to_thread(site.end_proxy_environments)
        began_ms = now_ms()
        assert await exchange(offer_body("1")) == Denied(End.OFFER_DENIED.reply)
        for answers in (True, False):
            poll = asyncio.create_task(proxies.poll())
            await somebody_waits(pools)
            offered = asyncio.ensure_future(exchange(offer_body("2")))
            polled = await poll
            assert polled.matched
            if answers:
                assert await proxies.answer(polled.sid, answer("2")) == "success"
            assert (await offered == Denied(End.OFFER_TIMED_OUT.reply)) is not answers
        assert await proxies.answer(polled.sid, answer("2")) == "client gone"
        assert not (await proxies.poll()).matched
    return began_ms


ENDINGS = (
    *(("offer", outcome) for outcome in ("denied", "matched", "timeout")),
    *(("poll", outcome) for outcome in ("idle", "matched")),
    *(("answer", outcome) for outcome in ("success", "timeout")),
)


def test_what_happens_is_published_counted_and_served(deployed: Deployed, site: Site) -> None:
    began_ms = asyncio.run(asyncio.wait_for(a_scripted_minute(deployed, site), WITHIN_S))
    site.end_proxy_environments()
    messages = site.messages(*ENDINGS, since_ms=began_ms)
    told = Counter(map(_ending, messages))
    assert told.keys() == set(ENDINGS)
    # Polls that ended alike may be told of together, and some of them later.
    assert {ending: number for ending, number in told.items() if ending[0] != "poll" and number != 1} == {}
    for message in messages:
        body = json.loads(message["Body"])
        attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        assert {name: attributes[name] for name in ("kind", "outcome", "country")} == {
            name: body[name] for name in ("kind", "outcome", "country")
        }
        assert (bool(re.fullmatch(ULID, body["id"])), body["site"], body["country"]) == (True, site.tag, "??")
        assert "127.0.0.1" not in message["Body"]
    events = {_ending(message): parse_event(json.loads(message["Body"])) for message in messages}
    offer, poll = events["offer", "matched"], events["poll", "idle"]
    assert isinstance(offer, OfferEvent)
    assert isinstance(poll, PollEvent)
    assert (offer.method, offer.proxy_type, offer.nat) == ("sqs", "standalone", "unknown")
    # SQS waits whole seconds: a hold ends to within half a second.
    assert poll.waited_ms > HOLD_MS - SHORTEST_WAIT_MS
    assert poll.all_addresses

    page = site.page_with(
        "prometheus",
        *(
            f'snowflake_rounded_client_poll_total{{nat="unknown",status="{outcome}",cc="??",rendezvous_method="sqs"}} '
            for outcome in ("denied", "matched", "timeout")
        ),
        'snowflake_rounded_proxy_answer_total{type="standalone",status="success"} ',
        'snowflake_rounded_proxy_answer_total{type="",status="timeout"} ',
        'snowflake_rounded_proxy_poll_total{nat="unrestricted",type="standalone",status="idle"} ',
        'snowflake_rounded_proxy_poll_total{nat="unrestricted",type="standalone",status="matched"} ',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unrestricted",type="standalone"} ',
    )
    numbers = [int(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("snowflake_rounded")]
    assert all(number % 8 == 0 for number in numbers)


def test_a_day_that_is_over_is_in_the_log(deployed: Deployed, site: Site) -> None:
    yesterday_ms = now_ms() - DAY_MS
    poll = PollEvent(
        id=derive_ulid("yesterday's poll", sent_at_ms=yesterday_ms),
        at_ms=yesterday_ms,
        outcome="idle",
        nat="restricted",
        country="DE",
        proxy_type="webext",
        relay_extension=True,
        address="0" * 32,
    )
    again = replace(poll, id=derive_ulid("another poll", sent_at_ms=yesterday_ms), nat="unrestricted")
    offer = OfferEvent(
        id=derive_ulid("yesterday's offer", sent_at_ms=yesterday_ms),
        at_ms=yesterday_ms,
        outcome="denied",
        nat="unknown",
        country="FR",
        method="http",
    )
    site.tell(poll, again)
    site.tell(offer)
    if format_day(BEGAN_MS) != format_day(now_ms()):  # what other tests told before midnight is of that day, too
        assert site.page_with("metrics", "DE=1", "client-http-ips FR=8")
        return
    page = site.page_with("metrics", "snowflake-ips DE=1", "snowflake-ips-nat-unrestricted 1", "client-http-ips FR=8")
    assert page == "\n".join(
        [
            f"snowflake-stats-end {format_day(now_ms())} 00:00:00 (86400 s)",
            "snowflake-ips DE=1",
            "snowflake-ips-iptproxy 0",
            "snowflake-ips-standalone 0",
            "snowflake-ips-webext 1",
            "snowflake-ips-badge 0",
            "snowflake-ips-bloco 0",
            "snowflake-ips-total 1",
            "snowflake-idle-count 8",
            "snowflake-proxy-poll-with-relay-url-count 8",
            "snowflake-proxy-poll-without-relay-url-count 0",
            "snowflake-proxy-rejected-for-relay-url-count 0",
            "client-denied-count 8",
            "client-restricted-denied-count 8",
            "client-unrestricted-denied-count 0",
            *(f"client-nat-{nat}-denied-count 0" for nat in ("open", "moderate", "strict")),
            "client-snowflake-match-count 0",
            "client-snowflake-timeout-count 0",
            "client-http-count 8",
            "client-http-ips FR=8",
            "client-ampcache-count 0",
            "client-ampcache-ips ",
            "client-sqs-count 0",
            "client-sqs-ips ",
            "snowflake-ips-nat-restricted 1",
            "snowflake-ips-nat-unrestricted 1",
            "snowflake-ips-nat-unknown 0",
            *(f"snowflake-ips-nat-{nat} 0" for nat in ("open", "moderate", "strict")),
            "",
        ]
    )
