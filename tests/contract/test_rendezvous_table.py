"""The books and pools keep their ports' promises: the DynamoDB adapters on moto, and the fakes beside them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import boto3
import pytest
from moto import mock_aws

from sluice.aws.rendezvous.stores import DynamoMailboxStore, DynamoOfferStore, DynamoProxyPools
from sluice.rendezvous.ports import Claim, MailboxStore, OfferRecord, OfferState, OfferStore, ProxyPools
from sluice.rendezvous.protocol.matching import HOLD_MS, PATIENCE_MS, Nat, Pool, Profile, WaitingProxy
from sluice.rendezvous.protocol.messages import OfferMethod
from tests.fakes import FakeMailboxStore, FakeOfferStore, FakePools

NOW = 1_700_000_000_000
REGION = "eu-central-1"


@dataclass
class Table:
    """The three parts of the table."""

    offers: OfferStore
    pools: ProxyPools
    mailboxes: MailboxStore


@pytest.fixture(params=["dynamodb", "fake"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    if request.param == "fake":
        pools = FakePools()
        yield Table(FakeOfferStore(pools), pools, FakeMailboxStore())
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("dynamodb", region_name=REGION)
        client.create_table(
            TableName="t",
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            BillingMode="PAY_PER_REQUEST",
        )
        yield Table(DynamoOfferStore(client, "t"), DynamoProxyPools(client, "t"), DynamoMailboxStore(client, "t"))


def offer(client_id: str = "c", sent_at_ms: int = NOW) -> OfferRecord:
    return OfferRecord(client_id=client_id, sent_at_ms=sent_at_ms, method=OfferMethod.SQS)


def proxy(poll_id: str = "p", *, sid: str = "", clients: int = 0, polled_at_ms: int = NOW) -> WaitingProxy:
    return WaitingProxy(
        poll_id=poll_id,
        sid=sid or f"sid-{poll_id}",
        pool=Pool.UNRESTRICTED,
        clients=clients,
        polled_at_ms=polled_at_ms,
        mailbox=f"m-{poll_id}",
    )


def claim(table: Table, record: OfferRecord, waiting: WaitingProxy, *, now_ms: int = NOW) -> Claim:
    return table.offers.claim(record, waiting, reply_to="r", now_ms=now_ms)


def match(table: Table, record: OfferRecord, waiting: WaitingProxy) -> None:
    table.offers.record(record)
    table.pools.enter(waiting)
    assert claim(table, record, waiting) is Claim.WON


def test_an_offer_is_recorded_once_and_a_repetition_sees_how_it_stands(table: Table) -> None:
    assert table.offers.record(offer()) is None
    assert table.offers.record(offer()) == offer()
    table.pools.enter(proxy())
    claim(table, offer(), proxy())
    earlier = table.offers.record(offer())
    assert earlier is not None
    assert (earlier.state, earlier.proxy, earlier.reply_to) == (OfferState.MATCHED, proxy(), "r")


def test_the_same_client_id_at_another_time_is_another_offer(table: Table) -> None:
    table.offers.record(offer())
    assert table.offers.record(offer(sent_at_ms=NOW + 1)) is None


def test_a_claim_takes_the_proxy_out_of_its_pool(table: Table) -> None:
    match(table, offer(), proxy())
    assert table.pools.waiting(Pool.UNRESTRICTED, limit=10) == []
    assert not table.pools.leave(proxy())


def test_a_proxy_is_claimed_by_one_offer(table: Table) -> None:
    match(table, offer(), proxy())
    table.offers.record(offer("d"))
    assert claim(table, offer("d"), proxy()) is Claim.PROXY_TAKEN


def test_an_offer_claims_one_proxy(table: Table) -> None:
    match(table, offer(), proxy())
    table.pools.enter(proxy("q"))
    assert claim(table, offer(), proxy("q")) is Claim.OFFER_TAKEN
    assert len(table.pools.waiting(Pool.UNRESTRICTED, limit=10)) == 1


def test_a_proxy_that_left_or_whose_poll_is_over_is_not_claimed(table: Table) -> None:
    table.offers.record(offer())
    assert claim(table, offer(), proxy()) is Claim.PROXY_TAKEN
    table.pools.enter(proxy())
    assert claim(table, offer(), proxy(), now_ms=NOW + HOLD_MS) is Claim.PROXY_TAKEN


def test_a_name_that_waits_twice_is_matched_once_at_a_time(table: Table) -> None:
    match(table, offer(), proxy("p", sid="s"))
    table.offers.record(offer("d"))
    table.pools.enter(proxy("q", sid="s"))
    assert claim(table, offer("d"), proxy("q", sid="s")) is Claim.PROXY_TAKEN
    assert claim(table, offer("d"), proxy("q", sid="s"), now_ms=NOW + PATIENCE_MS + 1) is Claim.WON


def test_a_released_offer_may_claim_another_proxy(table: Table) -> None:
    match(table, offer(), proxy())
    table.offers.release(offer(), proxy())
    table.pools.enter(proxy("q"))
    assert claim(table, offer(), proxy("q")) is Claim.WON
    assert table.offers.answer("sid-p") is None


def test_an_answer_finds_its_offer_once(table: Table) -> None:
    match(table, offer(), proxy())
    answered = table.offers.answer("sid-p")
    assert answered is not None
    assert (answered.client_id, answered.reply_to, answered.state) == ("c", "r", OfferState.ANSWERED)
    assert table.offers.answer("sid-p") is None
    assert not table.offers.time_out(offer())


def test_an_answer_from_a_stranger_finds_nothing(table: Table) -> None:
    assert table.offers.answer("stranger") is None


def test_a_timed_out_offer_is_not_answered(table: Table) -> None:
    match(table, offer(), proxy())
    assert table.offers.time_out(offer())
    assert not table.offers.time_out(offer())
    assert table.offers.answer("sid-p") is None


def test_an_answer_taken_back_is_there_to_be_timed_out(table: Table) -> None:
    match(table, offer(), proxy())
    answered = table.offers.answer("sid-p")
    assert answered is not None
    table.offers.unanswer(answered)
    assert table.offers.time_out(offer())


def test_only_unanswered_matches_of_the_asked_time_are_found_oldest_first(table: Table) -> None:
    for number in range(6):
        match(table, offer(f"c{number}", NOW - number), proxy(f"p{number}"))
    table.offers.record(offer("unmatched"))
    table.offers.answer("sid-p2")
    found = table.offers.matched(since_ms=NOW - 4, until_ms=NOW - 1)
    assert [(one.client_id, one.sent_at_ms, one.proxy) for one in found] == [
        (f"c{number}", NOW - number, proxy(f"p{number}")) for number in (4, 3, 1)
    ]


def test_what_was_sent_before_is_found_and_forgotten(table: Table) -> None:
    for number in range(60):
        table.offers.record(offer(f"c{number}", NOW - number))
    old = [one for page in table.offers.sent_before(NOW - 9) for one in page]
    assert {one.client_id for one in old} == {f"c{number}" for number in range(10, 60)}
    table.offers.forget(old)
    left = [one for page in table.offers.sent_before(NOW + 1) for one in page]
    assert {one.client_id for one in left} == {f"c{number}" for number in range(10)}


def test_those_with_the_fewest_clients_then_the_longest_waiting_come_first(table: Table) -> None:
    for waiting in (proxy("a", clients=10), proxy("b", clients=9), proxy("c", polled_at_ms=NOW + 1), proxy("d")):
        table.pools.enter(waiting)
    assert [one.poll_id for one in table.pools.waiting(Pool.UNRESTRICTED, limit=3)] == ["d", "c", "b"]
    assert table.pools.waiting(Pool.RESTRICTED, limit=3) == []
    assert table.pools.waiting(Pool.UNRESTRICTED, limit=9)[3] == proxy("a", clients=10)


def test_only_those_whose_poll_is_not_over_are_counted(table: Table) -> None:
    table.pools.enter(proxy("a"))
    table.pools.enter(proxy("b", polled_at_ms=NOW - HOLD_MS))
    assert table.pools.count(Pool.UNRESTRICTED, now_ms=NOW) == 1


def test_a_proxy_leaves_once(table: Table) -> None:
    table.pools.enter(proxy())
    assert [table.pools.leave(proxy()), table.pools.leave(proxy())] == [True, False]


def test_recent_demand_is_that_of_the_busiest_of_two_hold_times(table: Table) -> None:
    now_ms = NOW - NOW % HOLD_MS
    table.pools.note_offers(Pool.RESTRICTED, 3, now_ms=now_ms)
    table.pools.note_offers(Pool.RESTRICTED, 4, now_ms=now_ms + 1)
    table.pools.note_offers(Pool.RESTRICTED, 1, now_ms=now_ms + HOLD_MS)
    assert table.pools.recent_offers(Pool.RESTRICTED, now_ms=now_ms + HOLD_MS) == 7
    assert table.pools.recent_offers(Pool.RESTRICTED, now_ms=now_ms + 2 * HOLD_MS) == 1
    assert table.pools.recent_offers(Pool.RESTRICTED, now_ms=now_ms + 3 * HOLD_MS) == 0
    assert table.pools.recent_offers(Pool.UNRESTRICTED, now_ms=now_ms) == 0


def test_mailboxes_are_found_by_age_and_forgotten(table: Table) -> None:
    table.mailboxes.note("old", created_at_ms=NOW)
    table.mailboxes.note("young", created_at_ms=NOW + 1)
    assert [page for page in table.mailboxes.created_before(NOW + 1) if page] == [[("old", NOW)]]
    table.mailboxes.forget([("old", NOW)])
    assert [page for page in table.mailboxes.created_before(NOW + 2) if page] == [[("young", NOW + 1)]]


def test_a_matched_offer_knows_what_is_to_be_told_of_it_and_of_its_proxys_poll(table: Table) -> None:
    profile = Profile(
        type="webext", nat=Nat.UNRESTRICTED, country="DE", address="0a", relay_extension=True, trace="Root=1"
    )
    waiting = replace(proxy(clients=3), profile=profile)
    described = replace(offer(), nat=Nat.RESTRICTED, country="FR", trace="Root=2")
    table.offers.record(offer())
    table.pools.enter(waiting)
    assert table.pools.waiting(Pool.UNRESTRICTED, limit=1) == [waiting]
    assert claim(table, described, waiting, now_ms=NOW + 70) is Claim.WON
    found = table.offers.time_out(offer())
    assert found is not None
    assert (found.nat, found.country, found.trace) == (Nat.RESTRICTED, "FR", "Root=2")
    assert (found.proxy, found.matched_at_ms) == (waiting, NOW + 70)


def test_of_those_who_wait_their_profiles_are_known(table: Table) -> None:
    for number, type_ in enumerate(("webext", "badge", "badge")):
        table.pools.enter(replace(proxy(f"p{number}"), profile=Profile(type=type_)))
    table.pools.enter(proxy("late", polled_at_ms=NOW - HOLD_MS))
    found = table.pools.profiles(Pool.UNRESTRICTED, now_ms=NOW)
    assert sorted(profile.type for profile in found) == ["badge", "badge", "webext"]
    assert table.pools.profiles(Pool.RESTRICTED, now_ms=NOW) == []
