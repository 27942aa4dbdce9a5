"""What the rendezvous stores and sends, kind by kind, as files: who changes a format sees it here.

Each file is written by today's code and read by it. A change of one says so in the changelog, reads what the file has,
and keeps the file beside its own.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sluice.aws.rendezvous.address_keys import AddressHasher
from sluice.aws.rendezvous.event_publisher import TableTeller
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.stores import DynamoMailboxStore, DynamoOfferStore, DynamoProxyPools
from sluice.rendezvous.broker import TimeoutTick, offer_letter
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollOutcome, poll_ended, read_event
from sluice.rendezvous.counts.statistics import Count, Position, tally
from sluice.rendezvous.counts.stream import read_record
from sluice.rendezvous.ports import Claim, OfferRecord, OfferState
from sluice.rendezvous.protocol.matching import HOLD_MS, Nat, Pool, Profile, WaitingProxy
from sluice.rendezvous.protocol.messages import Bridge, Offer, OfferMethod
from tests.fakes import Clock

FILES = Path(__file__).parents[1] / "stored" / "rendezvous"
NOW = 1_700_000_000_000
DAY = "2023-11-14"
KEY = bytes(range(32))
ADDRESS = "00112233445566778899aabbccddeeff"
TRACE = "Root=1-67891233-abcdef012345678912345678;Sampled=1"
RECEIVED = OfferRecord(client_id="0123456789abcdef", sent_at_ms=NOW, method=OfferMethod.SQS)
PROXY = WaitingProxy(
    poll_id="11112222333344445555666677778888",
    sid="aaaabbbbccccddddeeeeffff00001111",
    pool=Pool.UNRESTRICTED,
    clients=8,
    polled_at_ms=NOW - 1_500,
    mailbox="https://sqs.eu-central-1.amazonaws.com/123456789012/sluice-mailbox-1",
    profile=Profile(
        type="webext", nat=Nat.UNRESTRICTED, country="DE", address=ADDRESS, relay_extension=True, trace=TRACE
    ),
)
MATCHED = OfferRecord(
    client_id="0123456789abcdef",
    sent_at_ms=NOW,
    method=OfferMethod.SQS,
    state=OfferState.MATCHED,
    reply_to="https://sqs.eu-central-1.amazonaws.com/123456789012/snowflake-client-0123456789abcdef",
    proxy=PROXY,
    matched_at_ms=NOW + 250,
    nat=Nat.RESTRICTED,
    country="FR",
    trace=TRACE,
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
ANSWER_EVENT = AnswerEvent(
    id="01HF7YAT00ZB2SPHCC10MMKDDD", at_ms=NOW, outcome="success", nat="unrestricted", country="DE", proxy_type="webext"
)
POLL_EVENT = poll_ended(
    PROXY.profile, PollOutcome.MATCHED, name=PROXY.poll_id, clients=8, polled_at_ms=PROXY.polled_at_ms, at_ms=NOW
)
POLLS_EVENT = replace(
    POLL_EVENT, outcome="idle", clients=20, address=None, polls=3, addresses=(ADDRESS, KEY.hex()[:32])
)


class Table:
    """The rendezvous' table with what stands in it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.offers, self.pools = DynamoOfferStore(client, "t"), DynamoProxyPools(client, "t")
        self.mailboxes = DynamoMailboxStore(client, "t")
        self.statistics = DynamoStatisticsStore(client, "t", Clock(NOW))

    def put(self, name: str) -> None:
        self.client.put_item(TableName="t", Item=item(name))

    def items(self) -> list[Any]:
        """All, in order of their keys."""
        return sorted(self.client.scan(TableName="t")["Items"], key=lambda each: (each["pk"]["S"], each["sk"]["S"]))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("dynamodb", region_name="eu-central-1")
        client.create_table(
            TableName="t",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            BillingMode="PAY_PER_REQUEST",
        )
        yield Table(client)


def item(name: str) -> dict[str, Any]:
    """An item as boto3 has it: bytes are base64 in the file."""
    stored = json.loads((FILES / f"{name}.json").read_text())
    return {key: {"B": base64.b64decode(value["B"])} if "B" in value else value for key, value in stored.items()}


def keys(name: str) -> tuple[Any, Any]:
    return item(name)["pk"], item(name)["sk"]


def in_order(*names: str) -> list[dict[str, Any]]:
    return sorted(map(item, names), key=lambda each: (each["pk"]["S"], each["sk"]["S"]))


def body(name: str) -> str:
    return (FILES / f"{name}.json").read_text().removesuffix("\n")


def test_a_received_offer(table: Table) -> None:
    table.offers.record(RECEIVED)
    assert table.items() == [item("offer_received")]
    table.put("offer_received")
    assert table.offers.record(RECEIVED) == RECEIVED


def test_a_waiting_proxy(table: Table) -> None:
    table.pools.enter(PROXY)
    assert table.items() == [item("waiting_proxy")]
    table.put("waiting_proxy")
    assert table.pools.waiting(Pool.UNRESTRICTED, limit=1) == [PROXY]
    assert table.pools.profiles(Pool.UNRESTRICTED, now_ms=NOW) == [PROXY.profile]


def test_a_matched_offer_and_its_match(table: Table) -> None:
    table.put("offer_received")
    table.put("waiting_proxy")
    described = replace(RECEIVED, nat=Nat.RESTRICTED, country="FR", trace=TRACE)
    assert table.offers.claim(described, PROXY, reply_to=MATCHED.reply_to, now_ms=NOW + 250) is Claim.WON
    assert table.items() == in_order("offer_matched", "match")
    table.put("offer_matched")
    table.put("match")
    assert table.offers.matched(since_ms=NOW, until_ms=NOW) == [MATCHED]
    assert table.offers.answer(PROXY.sid) == replace(MATCHED, state=OfferState.ANSWERED)


def test_the_demand_of_a_pool(table: Table) -> None:
    table.pools.note_offers(Pool.RESTRICTED, 3, now_ms=NOW)
    assert table.items() == [item("demand")]
    table.put("demand")
    assert table.pools.recent_offers(Pool.RESTRICTED, now_ms=NOW + HOLD_MS) == 3


def test_a_mailbox(table: Table) -> None:
    table.mailboxes.note(MAILBOX[0], created_at_ms=MAILBOX[1])
    assert table.items() == [item("mailbox")]
    table.put("mailbox")
    assert [*table.mailboxes.created_before(NOW + 1)] == [[MAILBOX]]


def test_a_days_key(table: Table) -> None:
    assert AddressHasher(table.client, "t", Clock(NOW), draw=lambda number: KEY).key(DAY) == KEY
    assert table.items() == [item("address_key")]
    table.put("address_key")
    assert AddressHasher(table.client, "t", Clock(NOW)).key(DAY) == KEY


def test_statistics(table: Table) -> None:
    assert table.statistics.add([tally(POLL_EVENT, Position("told", "4421584500000000017450439091".zfill(40)))]) == {}
    names = ("row", "row_of_day", "address")
    assert table.items() == in_order(*names)
    for name in names:
        table.put(name)
    polled = Count("rounded_proxy_poll_total", ("unrestricted", "webext", "matched"))
    assert table.statistics.totals()[polled] == 1
    counts = table.statistics.of_day(DAY)
    assert (counts[polled], counts[Count("addresses", ("DE",))]) == (1, 1)
    # The mark is there, so its address counts no more.
    other = DynamoStatisticsStore(table.client, "t", Clock(NOW))
    assert other.add([tally(POLL_EVENT, Position("told", "9".zfill(40)))]) == {}
    assert other.of_day(DAY)[Count("addresses", ("DE",))] == 1


def test_statistics_as_they_were_counted_before_rows(table: Table) -> None:
    for name in ("counters", "counters_of_day", "counters_of_day_addresses", "seen"):
        table.put(name)
    polled = Count("rounded_proxy_poll_total", ("unrestricted", "webext", "matched"))
    assert table.statistics.totals() == {polled: 1}
    assert table.statistics.of_day(DAY) == {polled: 1, Count("addresses", ("DE",)): 1}


def test_what_is_told_of_events(table: Table) -> None:
    teller = TableTeller(
        table="t", site="frankfurt", client=lambda: table.client, now_ms=Clock(NOW), new_id=lambda: "1"
    )
    assert teller.publish([OFFER_EVENT, POLLS_EVENT]) == 0
    assert table.items() == [item("told")]
    stored = item("told")
    record = {"dynamodb": {"Keys": stored, "NewImage": stored, "SequenceNumber": "1"}}
    assert read_record(record).events == (OFFER_EVENT, POLLS_EVENT)


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
    assert read_event(body(name)) == event


def test_a_tick() -> None:
    assert TimeoutTick(NOW).body() == body("timeout_tick")
    assert TimeoutTick.parse(body("timeout_tick")) == TimeoutTick(NOW)


def test_a_letter_with_an_offer() -> None:
    """Read by the function that holds the poll, which may be of an older version."""
    bridge = Bridge(display_name="d", websocket_address="wss://relay.example/", fingerprint=b"f" * 20)
    offer = Offer(
        client_id="c",
        offer='{"type": "offer", "sdp": "v=0"}',
        nat=Nat.RESTRICTED,
        bridge=bridge,
        method=OfferMethod.SQS,
        sent_at_ms=NOW,
    )
    assert offer_letter(offer, PROXY.poll_id) == body("offer_letter")
