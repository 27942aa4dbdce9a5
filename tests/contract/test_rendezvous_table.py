"""The rendezvous' stores keep their promises, on moto."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.aws.rendezvous.address_keys import AddressHasher
from sluice.aws.rendezvous.offers import DEAD_AFTER_MS, SID_COOLDOWN_MS, DynamoOfferStore, DynamoProxyPools
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.aws.rendezvous.waiting import DynamoMailboxStore, DynamoWaitingOffers
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    ANSWERING_MS,
    HOLD_MS,
    PATIENCE_MS,
    Match,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    Profile,
    WaitingProxy,
)
from sluice.rendezvous.protocol.pace import LATELY_MINUTES, Counts
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS, format_day, parse_day_ms
from tests.tables import table_in_memory

NOW = 1_700_000_000_000
REGION = "eu-central-1"
LIMIT = 10


@dataclass
class Table:
    """What stands in the two tables, by its stores."""

    offers: DynamoOfferStore
    pools: DynamoProxyPools
    waiting: DynamoWaitingOffers
    pace: DynamoPaceStore
    mailboxes: DynamoMailboxStore


@pytest.fixture
def client() -> Iterator[Any]:
    """A client that has one table for all, `t`."""
    with table_in_memory() as made:
        yield made


@pytest.fixture(params=["dynamodb"])
def table(request: pytest.FixtureRequest) -> Table:
    return dynamodb(request.getfixturevalue("client"))


def dynamodb(client: Any) -> Table:
    return Table(
        DynamoOfferStore(client, "t"),
        DynamoProxyPools(client, "t", random.Random(1).random),
        DynamoWaitingOffers(client, "t"),
        DynamoPaceStore(client, "t"),
        DynamoMailboxStore(client, "t"),
    )


def offer(client_id: str = "c", sent_at_ms: int = NOW, **described: Any) -> OfferRecord:
    return OfferRecord(client_id=client_id, sent_at_ms=sent_at_ms, method=OfferMethod.SQS, token="mine", **described)


def opened(record: OfferRecord | None = None, *, shard: int = 0) -> OpenOffer:
    record = record or offer()
    return OpenOffer(
        record=record,
        offer='{"type": "offer", "sdp": "v=0"}',
        relay="wss://relay.example/",
        reply_to=f"q-{record.client_id}",
        answers_until_ms=record.sent_at_ms + PATIENCE_MS,
        shard=shard,
    )


def proxy(poll_id: str = "p", **other: Any) -> WaitingProxy:
    given: dict[str, Any] = {"sid": f"sid-{poll_id}", "pool": Pool.UNRESTRICTED, "clients": 0, "polled_at_ms": NOW}
    return WaitingProxy(poll_id=poll_id, mailbox=f"m-{poll_id}", **given | other)


def waiting(table: Table, pool: Pool = Pool.UNRESTRICTED, *, limit: int = LIMIT, shards: int = 1) -> list[str]:
    """The polls that are read, in order of their ids."""
    return sorted(one.poll_id for one in table.pools.read_waiting(pool, now_ms=NOW, limit=limit, shards=shards))


def oldest(table: Table, pool: Pool, *, now_ms: int = NOW, limit: int = LIMIT, shards: int = 1) -> list[str]:
    """The clients whose offers a proxy of this pool may take, in the order in which it tries them."""
    found = table.waiting.read_oldest(pool, now_ms=now_ms, limit=limit, shards=shards, consistent=True)
    return [one.record.client_id for one in found]


def left(table: Table, *, until_ms: int, shards: int = 1) -> dict[tuple[str, int], Mapping[str, Any]]:
    pages = table.waiting.list_untaken(until_ms=until_ms, shards=shards)
    return {offer: key for page in pages for offer, key in page.items()}


def sent_before(table: Table, until_ms: int) -> list[OfferRecord]:
    return [one for page in table.offers.read_sent_before(until_ms) for one in page]


def of(client_ids: Sequence[OfferRecord]) -> set[str]:
    return {one.client_id for one in client_ids}


# Offers


def test_an_offer_is_recorded_once_by_whoever_comes_first_and_may_repeat_it(table: Table) -> None:
    assert table.offers.record(offer())
    assert table.offers.record(offer())
    assert not table.offers.record(replace(offer(), token="another delivery's"))


def test_the_same_client_id_at_another_time_is_another_offer(table: Table) -> None:
    table.offers.record(offer())
    assert table.offers.record(replace(offer(sent_at_ms=NOW + 1), token="other"))


def test_a_poll_is_given_one_offer_and_whoever_gave_it_may_repeat_it(table: Table) -> None:
    assert table.offers.match(opened(), proxy(), now_ms=NOW)
    assert table.offers.match(opened(), proxy(), now_ms=NOW)
    assert not table.offers.match(opened(offer("d")), proxy(), now_ms=NOW)
    assert not table.offers.match(opened(offer(sent_at_ms=NOW + 1)), proxy(), now_ms=NOW)


def test_an_offer_whose_proxy_was_lost_may_be_given_to_another(table: Table) -> None:
    assert table.offers.match(opened(), proxy(), now_ms=NOW)
    assert table.offers.match(opened(), proxy("q"), now_ms=NOW)


def test_a_name_that_polls_again_rests_until_no_answer_of_its_earlier_match_can_come(table: Table) -> None:
    table.offers.match(opened(), proxy("p", sid="s"), now_ms=NOW)
    again, over_ms = proxy("q", sid="s"), NOW + PATIENCE_MS + SID_COOLDOWN_MS
    assert not table.offers.match(opened(offer("d")), again, now_ms=over_ms)
    assert table.offers.match(opened(offer("d")), again, now_ms=over_ms + 1)


def test_a_poll_that_was_matched_is_given_nothing_else_however_late(table: Table) -> None:
    table.offers.match(opened(), proxy(), now_ms=NOW)
    assert not table.offers.match(opened(offer("d")), proxy(), now_ms=NOW + 60_000)


def test_a_closed_poll_is_given_nothing(table: Table) -> None:
    assert table.offers.close_poll(proxy())
    assert table.offers.close_poll(proxy())
    assert not table.offers.match(opened(), proxy(), now_ms=NOW + HOLD_MS)


def test_a_poll_that_was_matched_is_not_closed(table: Table) -> None:
    table.offers.match(opened(), proxy(), now_ms=NOW)
    assert not table.offers.close_poll(proxy())
    assert not table.offers.match(opened(offer("d")), proxy(), now_ms=NOW)


def test_a_poll_of_a_closed_ones_name_is_given_an_offer_at_once(table: Table) -> None:
    table.offers.close_poll(proxy("p", sid="s"))
    assert table.offers.match(opened(), proxy("q", sid="s"), now_ms=NOW)


def test_a_poll_whose_name_rests_is_closed_and_the_answer_to_the_earlier_match_comes(table: Table) -> None:
    table.offers.record(offer())
    table.offers.match(opened(), proxy("p", sid="s"), now_ms=NOW)
    assert table.offers.close_poll(proxy("q", sid="s", polled_at_ms=NOW + 1))
    assert table.offers.answer("s", token="t", now_ms=NOW + 1) is not None


def test_an_answer_finds_its_offer_once_and_whoever_took_it_may_ask_again(table: Table) -> None:
    table.offers.record(offer())
    table.offers.match(opened(), proxy(), now_ms=NOW)
    taken = table.offers.answer("sid-p", token="t", now_ms=NOW + 1)
    assert taken is not None
    assert (taken.record.client_id, taken.record.end) == ("c", End.OFFER_MATCHED)
    assert (taken.reply_to, taken.answers_until_ms) == ("q-c", NOW + PATIENCE_MS)
    assert table.offers.answer("sid-p", token="t", now_ms=NOW + 2) is not None
    assert table.offers.answer("sid-p", token="another", now_ms=NOW + 2) is None


def test_an_answer_whose_match_is_known_needs_no_look_unless_its_time_is_over(table: Table) -> None:
    table.offers.record(offer())
    known = Match.parse(opened().for_answer, proxy().profile, has_waited=True)
    assert table.offers.answer("sid-p", token="t", now_ms=NOW + PATIENCE_MS, match=known) is None
    taken = table.offers.answer("sid-p", token="t", now_ms=NOW + 1, match=known)
    assert taken is not None
    assert (taken.record.end, taken.reply_to, taken.has_waited) == (End.OFFER_MATCHED, "q-c", True)
    assert table.offers.answer("sid-p", token="another", now_ms=NOW + 2, match=known) is None


def test_an_answer_counts_only_in_time(table: Table) -> None:
    table.offers.record(offer())
    table.offers.match(opened(), proxy(), now_ms=NOW)
    assert table.offers.answer("sid-p", token="t", now_ms=NOW + PATIENCE_MS) is None
    assert table.offers.answer("sid-p", token="t", now_ms=NOW + PATIENCE_MS - 1) is not None


def test_an_answer_from_a_stranger_or_of_a_closed_poll_finds_nothing(table: Table) -> None:
    table.offers.close_poll(proxy())
    assert table.offers.answer("stranger", token="t", now_ms=NOW) is None
    assert table.offers.answer("sid-p", token="t", now_ms=NOW) is None


def test_of_two_proxies_that_have_an_offer_the_first_to_answer_is_heard(table: Table) -> None:
    table.offers.record(offer())
    for poll in (proxy("p"), proxy("q")):
        table.offers.match(opened(), poll, now_ms=NOW)
    assert table.offers.answer("sid-q", token="t", now_ms=NOW) is not None
    assert table.offers.answer("sid-p", token="u", now_ms=NOW) is None


def test_an_answer_to_an_offer_that_was_refused_or_swept_finds_nothing(table: Table) -> None:
    table.offers.record(offer(end=End.OFFER_REFUSED))
    for record in (offer(), offer("swept")):
        table.offers.match(opened(record), proxy(record.client_id), now_ms=NOW)
        assert table.offers.answer(f"sid-{record.client_id}", token="t", now_ms=NOW) is None


def test_an_answered_offer_knows_what_is_to_be_told_of_it(table: Table) -> None:
    described = offer(nat=Nat.RESTRICTED, country="FR", trace="Root=2")
    table.offers.record(described)
    table.offers.match(opened(described), proxy(), now_ms=NOW)
    taken = table.offers.answer("sid-p", token="t", now_ms=NOW)
    assert taken is not None
    assert (taken.record.nat, taken.record.country, taken.record.trace) == (Nat.RESTRICTED, "FR", "Root=2")


def test_what_was_sent_before_is_found_with_its_state_and_forgotten(table: Table) -> None:
    for number in range(60):
        table.offers.record(offer(f"c{number}", NOW - number))
    table.offers.record(offer("refused", NOW - 60, end=End.OFFER_REFUSED))
    table.offers.match(opened(offer("c20", NOW - 20)), proxy(), now_ms=NOW)
    table.offers.answer("sid-p", token="t", now_ms=NOW)
    old = sent_before(table, NOW - 9)
    assert of(old) == {f"c{number}" for number in range(10, 60)} | {"refused"}
    states = {one.client_id: one.end for one in old if one.end is not None}
    assert states == {"c20": End.OFFER_MATCHED, "refused": End.OFFER_REFUSED}
    table.offers.delete(old)
    assert of(sent_before(table, NOW + 1)) == {f"c{number}" for number in range(10)}


def test_all_that_has_expired_is_deleted_but_what_is_written_again(client: Any) -> None:
    table = dynamodb(client)
    key = AddressHasher(client, "t", lambda: NOW)
    key.hash_address("192.0.2.1")
    table.pace.start_cooldown("a" * 32, NOW, now_ms=NOW)
    table.pools.add_proxy(proxy("dead"))
    table.waiting.add([opened()])
    table.pace.add(Counts({"offers": 1}), Counts(), now_ms=NOW)
    assert client.scan(TableName="t", Select="COUNT")["Count"] == 5

    def expire(at_ms: int) -> int:
        pages = table.waiting.read_expired(at_ms)
        return sum(table.waiting.delete_expired(item, now_ms=at_ms) for page in pages for item in page)

    assert expire(NOW + HOLD_MS + DEAD_AFTER_MS) == 0
    assert expire(NOW + HOLD_MS + DEAD_AFTER_MS + 1000) == 1  # the poll
    assert expire(NOW + HOUR_MS) == 3
    [kept] = client.scan(TableName="t")["Items"]
    assert kept["pk"] == {"S": "address keys"}
    assert expire(parse_day_ms(format_day(NOW)) + 2 * DAY_MS) == 0

    late_ms = parse_day_ms(format_day(NOW)) + 2 * DAY_MS + 1000
    [[expired]] = table.waiting.read_expired(late_ms)
    client.put_item(TableName="t", Item={**kept, "expires_at": {"N": str(NOW * 9)}})
    assert not table.waiting.delete_expired(expired, now_ms=late_ms)
    client.put_item(TableName="t", Item=kept)
    assert expire(late_ms) == 1
    assert client.scan(TableName="t", Select="COUNT")["Count"] == 0


def test_an_unreadable_offer_keeps_none_beside_it_from_being_found(client: Any) -> None:
    table = dynamodb(client)
    table.offers.record(offer())
    for sort_key, state in ((f"{NOW}#other", "of a newer version"), ("no time", "received")):
        stored = {"pk": "offers#0", "sk": sort_key, "method": "sqs", "state": state}
        client.put_item(TableName="t", Item={name: {"S": value} for name, value in stored.items()})
    assert of(sent_before(table, NOW + 1)) == {"c"}


# Pools


def test_a_poll_is_found_as_it_entered_until_it_leaves(table: Table) -> None:
    entered = proxy(clients=3, profile=Profile(type="webext", nat=Nat.UNRESTRICTED, country="DE", address="0a1b2c3d4e"))
    table.pools.add_proxy(entered)
    assert table.pools.read_waiting(Pool.UNRESTRICTED, now_ms=NOW, limit=LIMIT, shards=1) == [entered]
    assert table.pools.read_waiting(Pool.RESTRICTED, now_ms=NOW, limit=LIMIT, shards=1) == []
    table.pools.remove_proxy(entered)
    table.pools.remove_proxy(entered)
    assert waiting(table) == []


def test_a_poll_takes_the_place_of_an_earlier_one_of_its_name_which_leaves_without_it(table: Table) -> None:
    table.pools.add_proxy(proxy("p", sid="s"))
    table.pools.add_proxy(proxy("q", sid="s"))
    table.pools.remove_proxy(proxy("p", sid="s"))
    assert waiting(table) == ["q"]


def test_where_few_wait_all_are_read_from_every_shard(table: Table) -> None:
    for number in range(LIMIT):
        table.pools.add_proxy(proxy(f"p{number}", shard=number % 3))
    assert waiting(table, shards=3) == [f"p{number}" for number in range(LIMIT)]


def test_where_many_wait_they_are_drawn_round_about_and_each_is_drawn(table: Table) -> None:
    for number in range(40):
        address = f"{number * 0x06000000:08x}"
        table.pools.add_proxy(proxy(f"p{number:02}", profile=Profile(address=address), shard=number % 2))
    draws = [waiting(table, limit=5, shards=2) for _ in range(60)]
    assert all(len(drawn) >= 5 for drawn in draws)
    assert all(len(set(drawn)) == len(drawn) for drawn in draws)
    assert {poll for drawn in draws for poll in drawn} == {f"p{number:02}" for number in range(40)}


def test_those_whose_time_is_over_are_not_read(table: Table) -> None:
    table.pools.add_proxy(proxy("over", polled_at_ms=NOW - HOLD_MS))
    table.pools.add_proxy(proxy("live", polled_at_ms=NOW - HOLD_MS + 1))
    assert waiting(table) == ["live"]


def test_whoever_waits_behind_500_leftovers_is_found_and_these_are_deleted(client: Any) -> None:
    table = dynamodb(client)
    dead_at_ms = NOW - HOLD_MS - DEAD_AFTER_MS - 1
    for number in range(500):
        table.pools.add_proxy(proxy(f"dead{number}", polled_at_ms=dead_at_ms, profile=Profile(address=f"{number:08x}")))
    for number in range(5):
        table.pools.add_proxy(proxy(f"live{number}", profile=Profile(address=f"{number:x}fffffff")))
    table.pools.add_proxy(proxy("over", polled_at_ms=NOW - HOLD_MS))
    assert waiting(table) == [f"live{number}" for number in range(5)]
    # Whoever is just over may still leave by itself.
    assert client.scan(TableName="t", Select="COUNT")["Count"] == 6


def test_an_unreadable_poll_keeps_none_beside_it_from_being_read(client: Any) -> None:
    table = dynamodb(client)
    table.pools.add_proxy(proxy())
    for name in ("mailbox", "profile", "poll_id"):
        table.pools.add_proxy(proxy(f"no {name}"))
        client.update_item(
            TableName="t",
            Key={"pk": {"S": "polls#unrestricted#0"}, "sk": {"S": f"#sid-no {name}"}},
            UpdateExpression="REMOVE #name",
            ExpressionAttributeNames={"#name": name},
        )
    assert waiting(table) == ["p"]
    assert len(table.pools.read_profiles(Pool.UNRESTRICTED, now_ms=NOW, shards=1)) == 1


def test_of_those_who_wait_their_profiles_are_known(table: Table) -> None:
    for number, type_ in enumerate(("webext", "badge", "badge")):
        table.pools.add_proxy(proxy(f"p{number}", profile=Profile(type=type_), shard=number))
    table.pools.add_proxy(proxy("late", polled_at_ms=NOW - HOLD_MS))
    found = table.pools.read_profiles(Pool.UNRESTRICTED, now_ms=NOW, shards=3)
    assert sorted(profile.type for profile in found) == ["badge", "badge", "webext"]
    assert table.pools.read_profiles(Pool.RESTRICTED, now_ms=NOW, shards=3) == []


# Offers that wait


def test_an_offer_that_waits_is_read_as_it_was_put(table: Table) -> None:
    put = opened(offer(nat=Nat.RESTRICTED, country="FR", trace="Root=1"))
    table.waiting.add([put])
    [found] = table.waiting.read_oldest(Pool.UNRESTRICTED, now_ms=NOW, limit=LIMIT, shards=1)
    assert found == replace(put, record=replace(put.record, token=""))


def test_a_proxy_is_shown_only_those_that_it_can_serve_and_first_those_that_fewest_can(table: Table) -> None:
    for nat in (Nat.OPEN, Nat.STRICT, Nat.MODERATE):
        table.waiting.add([opened(offer(nat, nat=nat))])
    assert oldest(table, Pool.RESTRICTED) == ["open"]
    assert table.waiting.take(opened(offer("open", nat=Nat.OPEN)))
    assert oldest(table, Pool.RESTRICTED) == []
    for pool in (Pool.MODERATE, Pool.UNRESTRICTED):
        table.waiting.add([opened(offer("open", nat=Nat.OPEN))])
        found = []
        while shown := oldest(table, pool):
            found += shown
            assert table.waiting.take(opened(offer(shown[0], nat=Nat(shown[0]))))
        assert found == [*(["strict"] if pool is Pool.UNRESTRICTED else ["moderate"]), *["open"]]


def test_a_proxy_for_all_is_shown_first_those_that_nobody_else_can_serve(table: Table) -> None:
    table.waiting.add([opened(offer("any", NOW - 2, nat=Nat.UNRESTRICTED)), opened(offer("only", NOW - 1))])
    assert oldest(table, Pool.UNRESTRICTED) == ["only"]
    assert table.waiting.take(opened(offer("only", NOW - 1)))
    assert oldest(table, Pool.UNRESTRICTED) == ["any"]


def test_the_oldest_come_first_from_every_shard(table: Table) -> None:
    table.waiting.add([opened(offer(f"c{number}", NOW - number), shard=number % 3) for number in range(30)])
    assert oldest(table, Pool.UNRESTRICTED, limit=4, shards=3) == ["c29", "c28", "c27", "c26"]
    assert oldest(table, Pool.UNRESTRICTED, limit=4, shards=1) == ["c27", "c24", "c21", "c18"]


def test_offers_that_can_not_be_answered_in_time_are_not_shown_nor_in_the_way(table: Table) -> None:
    aged_ms = NOW - PATIENCE_MS + ANSWERING_MS
    late = [opened(offer(f"late{number:02}", aged_ms - number)) for number in range(2 * LIMIT)]
    # Whose client hears sooner that there is nobody
    brief = [
        replace(opened(offer(f"brief{number:02}", aged_ms + 1)), answers_until_ms=NOW + ANSWERING_MS)
        for number in range(2 * LIMIT)
    ]
    table.waiting.add([*late, *brief, opened(offer("young", aged_ms + 2))])
    assert oldest(table, Pool.UNRESTRICTED) == ["young"]


def test_an_offer_is_taken_once_and_may_be_put_back(table: Table) -> None:
    table.waiting.add([opened()])
    assert [table.waiting.take(opened()), table.waiting.take(opened())] == [True, False]
    assert oldest(table, Pool.UNRESTRICTED) == []
    table.waiting.add([opened()])
    assert table.waiting.take(opened())


def test_what_nobody_took_is_found_by_age_and_forgotten(table: Table) -> None:
    nats = (Nat.UNRESTRICTED, Nat.RESTRICTED)
    offers = [opened(offer(f"c{number}", NOW - number, nat=nats[number % 2]), shard=number % 4) for number in range(60)]
    table.waiting.add(offers)
    table.waiting.take(offers[50])
    old = left(table, until_ms=NOW - 9, shards=4)
    assert old.keys() == {(f"c{number}", NOW - number) for number in range(10, 60)} - {("c50", NOW - 50)}
    table.waiting.delete(list(old.values()))
    assert left(table, until_ms=NOW + 1, shards=4).keys() == {(f"c{number}", NOW - number) for number in range(10)}


def test_an_unreadable_offer_keeps_none_beside_it_from_being_shown(client: Any) -> None:
    table = dynamodb(client)
    table.waiting.add([opened(), opened(offer("broken"))])
    client.update_item(
        TableName="t",
        Key={"pk": {"S": "waiting#unrestricted#0"}, "sk": {"S": f"{NOW}#broken"}},
        UpdateExpression="SET offer = :offer",
        ExpressionAttributeValues={":offer": {"B": b"not compressed"}},
    )
    assert oldest(table, Pool.UNRESTRICTED) == ["c"]
    assert len(left(table, until_ms=NOW + 1)) == 2


# Pace


def test_what_is_counted_adds_up_in_its_minute_and_hour(table: Table) -> None:
    table.pace.add(Counts({"offers": 2}, frozenset({1, 5})), Counts({"held_ms": 10}), now_ms=NOW)
    table.pace.add(Counts({"offers": 3, "polls": 1}, frozenset({5, 9})), Counts({"held_ms": 5}), now_ms=NOW)
    assert table.pace.read_recent_counts(now_ms=NOW) == (
        {NOW // MINUTE_MS: Counts({"offers": 5, "polls": 1}, frozenset({1, 5, 9}))},
        {NOW // HOUR_MS: Counts({"held_ms": 15})},
    )


def test_what_counts_nothing_is_not_written(table: Table) -> None:
    table.pace.add(Counts(), Counts(), now_ms=NOW)
    assert table.pace.read_recent_counts(now_ms=NOW) == ({}, {})


def test_lately_are_the_last_minutes_and_the_hours_of_a_day(table: Table) -> None:
    for ago_ms in (
        0,
        MINUTE_MS,
        LATELY_MINUTES * MINUTE_MS,
        (LATELY_MINUTES + 1) * MINUTE_MS,
        DAY_MS,
        DAY_MS + HOUR_MS,
    ):
        table.pace.add(Counts({"offers": 1}), Counts({"offers": 1}), now_ms=NOW - ago_ms)
    minutes, hours = table.pace.read_recent_counts(now_ms=NOW)
    assert {NOW // MINUTE_MS - minute for minute in minutes} >= {0, 1}
    assert {NOW // MINUTE_MS - minute for minute in minutes} <= {*range(LATELY_MINUTES + 1)}
    assert {NOW // HOUR_MS - hour for hour in hours} == {0, 24}


def test_a_cooldown_starts_when_the_last_one_of_its_address_is_over(table: Table) -> None:
    start = table.pace.start_cooldown
    assert not table.pace.has_cooldown("a", now_ms=NOW)
    assert start("a", NOW + 1_000, now_ms=NOW) is None
    assert table.pace.has_cooldown("a", now_ms=NOW + 9_000)
    assert start("a", NOW + 9_000, now_ms=NOW + 999) == NOW + 1_000
    assert start("b", NOW + 9_000, now_ms=NOW + 999) is None
    assert start("a", NOW + 2_000, now_ms=NOW + 1_000) is None


def test_the_cooldown_of_a_held_poll_is_forgotten_as_it_ends(table: Table) -> None:
    table.pace.start_cooldown("a", NOW + 1_000, now_ms=NOW, is_held=True)
    assert [table.pace.has_cooldown("a", now_ms=NOW + later_ms) for later_ms in (0, 1_000)] == [True, False]


def test_a_cooldown_is_added_to_the_one_that_was_read(table: Table) -> None:
    start = table.pace.start_cooldown
    assert start("a", NOW + 1_000, now_ms=NOW) is None
    assert start("a", NOW + 2_000, now_ms=NOW, after_ms=NOW + 1_000) is None
    assert start("a", NOW + 3_000, now_ms=NOW, after_ms=NOW + 1_000) == NOW + 2_000


def test_the_start_of_a_cooldown_may_be_repeated(table: Table) -> None:
    start = table.pace.start_cooldown
    assert [start("a", NOW + 1_000, now_ms=NOW) for _ in range(2)] == [None, None]
    assert [start("a", NOW + 2_000, now_ms=NOW, after_ms=NOW + 1_000) for _ in range(2)] == [None, None]


# Mailboxes


def test_mailboxes_are_found_by_age_and_forgotten(table: Table) -> None:
    table.mailboxes.record("old", created_at_ms=NOW)
    table.mailboxes.record("young", created_at_ms=NOW + 1)
    assert [page for page in table.mailboxes.read_created_before(NOW + 1) if page] == [[("old", NOW)]]
    table.mailboxes.delete([("old", NOW)])
    assert [page for page in table.mailboxes.read_created_before(NOW + 2) if page] == [[("young", NOW + 1)]]
