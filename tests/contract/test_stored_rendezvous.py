"""What the rendezvous stores and sends, kind by kind, as files: who changes a format sees it here.

Each file is written by today's code and read by it. Once a version is released, a change of one says so in the
changelog, reads what the file has, and keeps the file in a folder `earlier`.
"""

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.aws.rendezvous.address_keys import AddressHasher
from sluice.aws.rendezvous.event_publisher import TableEventPublisher
from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.waiting import DynamoMailboxStore, DynamoWaitingOffers, decompress_description
from sluice.rendezvous.broker import build_mailbox_message
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, derive_event_id, parse_event
from sluice.rendezvous.counts.statistics import POLLS, PROXIES, tally
from sluice.rendezvous.counts.stream import read_events
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    Match,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    Profile,
    WaitingProxy,
)
from sluice.rendezvous.protocol.pace import Counts
from sluice.times import HOUR_MS, MINUTE_MS
from tests.fakes import Clock
from tests.tables import table_in_memory

FILES = Path(__file__).parents[1] / "stored" / "rendezvous"
NOW = 1_700_000_000_000
DAY = "2023-11-14"
KEY = bytes(range(32))
ADDRESS = "00112233445566778899aabbccddeeff"
TRACE = "Root=1-67891233-abcdef012345678912345678;Sampled=1"
SQS = "https://sqs.eu-central-1.amazonaws.com/123456789012"
OFFER = OfferRecord(
    client_id="0123456789abcdef",
    sent_at_ms=NOW,
    method=OfferMethod.SQS,
    nat=Nat.RESTRICTED,
    country="FR",
    trace=TRACE,
    token="99990000111122223333444455556666",
    waiting_shard=2,
    receipt_handle="AQEB",
)
OPEN = OpenOffer(
    record=OFFER,
    offer='{"type": "offer", "sdp": "v=0"}',
    relay="wss://relay.example/",
    reply_to=f"{SQS}/snowflake-client-0123456789abcdef",
    answers_until_ms=NOW + 5_000,
)
PROXY = WaitingProxy(
    poll_id="11112222333344445555666677778888",
    sid="aaaabbbbccccddddeeeeffff00001111",
    pool=Pool.UNRESTRICTED,
    clients=8,
    polled_at_ms=NOW - 1_500,
    mailbox=f"{SQS}/sluice-mailbox-1",
    profile=Profile(
        type="webext", nat=Nat.UNRESTRICTED, country="DE", address=ADDRESS, relay_extension=True, trace=TRACE
    ),
)
MAILBOX = ("sluice-mailbox-1", NOW)
OFFER_EVENT = OfferEvent(
    id="01HF7YAT006VVE3DQMDDMPT7RR",
    at_ms=NOW,
    outcome="matched",
    nat="restricted",
    country="FR",
    proxy_type="webext",
    trace=TRACE,
    method="sqs",
    waited_ms=650,
)
POLL_EVENT = PollEvent(
    id=derive_event_id("poll", PROXY.poll_id, at_ms=PROXY.polled_at_ms),
    at_ms=NOW,
    outcome="matched",
    nat="unrestricted",
    country="DE",
    proxy_type="webext",
    trace=TRACE,
    clients=8,
    relay_extension=True,
    waited_ms=1_500,
    address=ADDRESS,
)
ANSWER_EVENT = AnswerEvent(
    id="01HF7YAT00ZB2SPHCC10MMKDDD", at_ms=NOW, outcome="success", nat="unrestricted", country="DE", proxy_type="webext"
)
POLLS_EVENT = replace(
    POLL_EVENT, outcome="idle", clients=20, address=None, polls=3, addresses=(ADDRESS, KEY.hex()[:32])
)


class Table:
    """The rendezvous' two tables as one, with what stands in them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.offers = DynamoOfferStore(client, "t")
        self.pools = DynamoProxyPools(client, "t", random.Random(1).random)
        self.waiting = DynamoWaitingOffers(client, "t")
        self.pace = DynamoPaceStore(client, "t")
        self.mailboxes = DynamoMailboxStore(client, "t")
        self.statistics = DynamoStatisticsStore(client, "t", Clock(NOW))

    def put(self, name: str) -> None:
        self.client.put_item(TableName="t", Item=item(name))

    def items(self) -> list[Any]:
        """All, in order of their keys."""
        return sorted(self.client.scan(TableName="t")["Items"], key=lambda each: (each["pk"]["S"], each["sk"]["S"]))


@pytest.fixture
def table() -> Iterator[Table]:
    with table_in_memory() as client:
        yield Table(client)


def item(name: str) -> dict[str, Any]:
    """An item as boto3 has it: bytes are base64 in the file."""
    stored = json.loads((FILES / f"{name}.json").read_text())
    return {key: {"B": base64.b64decode(value["B"])} if "B" in value else value for key, value in stored.items()}


def in_order(*names: str) -> list[dict[str, Any]]:
    return sorted(map(item, names), key=lambda each: (each["pk"]["S"], each["sk"]["S"]))


def unpacked(waiting: dict[str, Any]) -> dict[str, Any]:
    """With the text that is packed: other versions of zlib pack it otherwise."""
    return waiting | {"offer": {"S": decompress_description(waiting["offer"]["B"])}}


def body(name: str) -> str:
    return (FILES / f"{name}.json").read_text().removesuffix("\n")


def test_an_offer(table: Table) -> None:
    assert table.offers.record(OFFER)
    assert table.items() == [item("offer")]
    table.put("offer")
    assert [*table.offers.read_sent_before(NOW + 1)][3] == [replace(OFFER, shard=3)]
    assert table.offers.read(OFFER, consistent=True) == replace(OFFER, shard=3)
    table.offers.delete([replace(OFFER, shard=3)])
    assert table.items() == []


def test_a_match(table: Table) -> None:
    assert table.offers.match(OPEN, PROXY, now_ms=NOW + 250, has_waited=True)
    assert table.items() == [item("match")]
    table.put("match")
    assert not table.offers.close_poll(PROXY)


def test_an_answered_offer(table: Table) -> None:
    table.put("offer")
    table.put("match")
    assert table.offers.answer(PROXY.sid, token="t", now_ms=NOW + 900) == Match(
        record=replace(OFFER, end=End.OFFER_MATCHED, shard=3),
        profile=PROXY.profile,
        reply_to=OPEN.reply_to,
        answers_until_ms=OPEN.answers_until_ms,
        has_waited=True,
    )
    assert table.items() == in_order("offer_answered", "match")
    table.put("offer_answered")
    assert table.offers.answer(PROXY.sid, token="another", now_ms=NOW + 900) is None


def test_an_offer_that_ended_without_an_answer(table: Table) -> None:
    table.put("offer")
    assert table.offers.end(replace(OFFER, shard=3), End.OFFER_DENIED, now_ms=NOW + 150_000)
    assert table.items() == [item("offer_denied")]
    table.put("offer_denied")
    assert not table.offers.end(replace(OFFER, shard=3), End.OFFER_TIMED_OUT, now_ms=NOW + 160_000)


def test_a_closed_poll(table: Table) -> None:
    assert table.offers.close_poll(PROXY)
    assert table.items() == [item("closed_poll")]
    table.put("closed_poll")
    assert not table.offers.match(OPEN, PROXY, now_ms=NOW)


def test_a_held_poll(table: Table) -> None:
    table.pools.add_proxy(PROXY)
    assert table.items() == [item("held_poll")]
    table.put("held_poll")
    assert table.pools.read_waiting(Pool.UNRESTRICTED, now_ms=NOW, limit=1, shards=1) == [PROXY]
    assert table.pools.read_profiles(Pool.UNRESTRICTED, now_ms=NOW, shards=1) == [PROXY.profile]


def test_an_offer_that_waits(table: Table) -> None:
    table.waiting.add([OPEN])
    assert list(map(unpacked, table.items())) == [unpacked(item("waiting_offer"))]
    table.put("waiting_offer")
    # Who wrote its record is of no use to who takes it.
    found = replace(OPEN, record=replace(OFFER, token="", waiting_shard=0, receipt_handle=""))
    assert table.waiting.read_oldest(Pool.UNRESTRICTED, now_ms=NOW, limit=1, shards=1) == [found]
    (untaken,) = (page for page in table.waiting.list_untaken(until_ms=NOW + 1, shards=1) if page)
    assert untaken == {OFFER.key: {name: item("waiting_offer")[name] for name in ("pk", "sk")}}


def test_what_is_counted_of_a_minute_and_of_an_hour(table: Table) -> None:
    minute = Counts({"unrestricted_offers": 3, "restricted_promised_ms": 40_000}, frozenset({7, 21}))
    hour = Counts({"offers": 3, "held_ms": 9_800})
    table.pace.add(minute, hour, now_ms=NOW)
    assert table.items() == in_order("pace_minute", "pace_hour")
    table.put("pace_minute")
    table.put("pace_hour")
    assert table.pace.read_recent_counts(now_ms=NOW) == ({NOW // MINUTE_MS: minute}, {NOW // HOUR_MS: hour})


def test_an_addresss_cooldown(table: Table) -> None:
    assert table.pace.start_cooldown(ADDRESS, NOW + 20_000, now_ms=NOW) is None
    assert table.items() == [item("turn")]
    table.put("turn")
    assert table.pace.start_cooldown(ADDRESS, NOW + 20_001, now_ms=NOW + 1) == NOW + 20_000


def test_a_mailbox(table: Table) -> None:
    table.mailboxes.record(MAILBOX[0], created_at_ms=MAILBOX[1])
    assert table.items() == [item("mailbox")]
    table.put("mailbox")
    assert [*table.mailboxes.read_created_before(NOW + 1)] == [[MAILBOX]]


def test_a_days_key(table: Table) -> None:
    assert AddressHasher(table.client, "t", Clock(NOW), random_bytes=lambda number: KEY).get_key(DAY) == KEY
    assert table.items() == [item("address_key")]
    table.put("address_key")
    assert AddressHasher(table.client, "t", Clock(NOW)).get_key(DAY) == KEY


def test_statistics(table: Table) -> None:
    counted = tally(POLL_EVENT)
    assert counted is not None
    table.statistics.add([counted])
    names = ("row", "row_of_day", "address")
    assert table.items() == in_order(*names)
    for name in names:
        table.put(name)
    proxy = PROXIES.build_count_name("webext", "unrestricted", "DE")
    polled = POLLS.build_count_name("unrestricted", "webext", "matched")
    assert table.statistics.read_totals()[polled] == 1
    counts = table.statistics.read_day(DAY)
    assert (counts[polled], counts[proxy]) == (1, 1)
    # The mark is there, so its address counts no more.
    other = DynamoStatisticsStore(table.client, "t", Clock(NOW))
    other.add([counted])
    assert other.read_day(DAY)[proxy] == 1


def test_what_is_told_of_events(table: Table) -> None:
    teller = TableEventPublisher(
        table="t", site="frankfurt", client=lambda: table.client, now_ms=Clock(NOW), new_id=lambda: "1"
    )
    assert teller.publish([OFFER_EVENT, POLLS_EVENT]) == 0
    assert table.items() == [item("told")]
    stored = item("told")
    record = {"dynamodb": {"Keys": stored, "NewImage": stored, "SequenceNumber": "1"}}
    assert read_events(record) == [OFFER_EVENT, POLLS_EVENT]


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("event_offer", OFFER_EVENT),
        ("event_poll", POLL_EVENT),
        ("event_polls", POLLS_EVENT),
        ("event_answer", ANSWER_EVENT),
    ],
)
def test_an_event_as_published(name: str, event: Event) -> None:
    assert event.to_json(site="frankfurt") == body(name)
    assert parse_event(json.loads(body(name))) == event


def test_a_letter_with_an_offer() -> None:
    """Read by the function that holds the poll, which may be of an older version."""
    assert build_mailbox_message(OPEN, PROXY.poll_id) == body("offer_letter")
