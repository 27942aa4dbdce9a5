"""The statistics keep their promises: in DynamoDB on moto, and the fake beside it; and the day's key."""

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.aws.rendezvous.address_keys import KEPT_MS, AddressHasher
from sluice.aws.rendezvous.offers import SHARDS
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.rendezvous.counts.events import AnswerEvent, OfferEvent, PollEvent, event_id
from sluice.rendezvous.counts.statistics import OFFERS, POLLS, Count, Position, Tally, tally, total
from sluice.rendezvous.protocol.addresses import KEY_BYTES, keyed_hash
from sluice.rendezvous.protocol.ends import outcomes_of
from sluice.rendezvous.protocol.matching import Nat
from sluice.times import DAY_MS, day_of, day_start_ms
from tests.fakes import Clock, FakeStatisticsStore
from tests.many_cases import some_of
from tests.tables import table_in_memory

NOW = 1_700_000_000_000
DAY = day_of(NOW)
TABLE = "t"


@pytest.fixture
def client() -> Iterator[Any]:
    with table_in_memory() as made:
        yield made


@pytest.fixture(params=["dynamodb", "fake"])
def statistics(request: pytest.FixtureRequest, client: Any) -> Any:
    return FakeStatisticsStore() if request.param == "fake" else DynamoStatisticsStore(client, TABLE, Clock(NOW))


def at(place: int, lane: str = "told") -> Position:
    return Position.of(lane, str(10**27 + place))  # as long as the stream's are


places = itertools.count(1)  # each event is told after all those before


def offer(
    country: str = "DE",
    *,
    position: Position | None = None,
    method: str = "sqs",
    nat: str = "unknown",
    at_ms: int = NOW,
) -> Tally:
    id_ = event_id("offer", "c", at_ms=at_ms)
    event = OfferEvent(id=id_, at_ms=at_ms, outcome="denied", country=country, method=method, nat=nat)
    return tally(event, position or at(next(places)))


def poll(
    address: str | None = "a",
    *,
    position: Position | None = None,
    nat: str = "unknown",
    type_: str = "webext",
    outcome: str = "idle",
    relay_extension: bool = False,
    at_ms: int = NOW,
) -> Tally:
    event = PollEvent(
        id=event_id("poll", "p", at_ms=at_ms),
        at_ms=at_ms,
        outcome=outcome,
        nat=nat,
        country="DE",
        proxy_type=type_,
        address=address,
        relay_extension=relay_extension,
    )
    return tally(event, position or at(next(places)))


def test_counts_add_up_for_ever_and_by_day(statistics: Any) -> None:
    for at_ms in (NOW, NOW, NOW + DAY_MS):
        assert statistics.add([offer(at_ms=at_ms), offer("FR", at_ms=at_ms)]) == {}
    assert total(statistics.totals(), OFFERS) == 6
    assert total(statistics.totals(), OFFERS, cc="DE") == 3
    assert total(statistics.of_day(DAY), OFFERS) == 4
    assert total(statistics.of_day(day_of(NOW + DAY_MS)), OFFERS) == 2
    assert statistics.of_day("2001-01-01") == Counter()


def test_a_batch_may_be_of_several_days_and_empty(statistics: Any) -> None:
    assert statistics.add([]) == {}
    assert statistics.add([Tally(position=at(next(places)), day=DAY)]) == {}
    assert statistics.add([offer(), offer(at_ms=NOW - DAY_MS), poll(), poll(at_ms=NOW - DAY_MS)]) == {}
    assert total(statistics.totals(), OFFERS) == 2
    for day in (DAY, day_of(NOW - DAY_MS)):
        assert statistics.of_day(day)[Count("addresses", ("DE",))] == 1


def test_an_address_counts_once_a_day_also_in_later_batches(statistics: Any) -> None:
    for nat in ("unknown", "unknown", "restricted"):
        statistics.add([poll(nat=nat), poll(nat=nat), poll("b"), poll(None)])
    found = statistics.of_day(DAY)
    assert found[Count("addresses", ("DE",))] == 2
    assert found[Count("addresses_by_nat", ("unknown",))] == 2
    assert found[Count("addresses_by_nat", ("restricted",))] == 1
    assert found[Count("addresses_by_type", ("webext",))] == 2
    assert total(found, POLLS) == total(statistics.totals(), POLLS) == 12
    assert not [count for count in statistics.totals() if count.family.startswith("addresses")]


def test_what_comes_again_is_counted_once(statistics: Any) -> None:
    batch = [offer(), poll(), offer(), poll("b")]
    for again in (batch, batch, batch[2:], [*batch[1:], offer()]):
        assert statistics.add(again) == {}
    assert total(statistics.totals(), OFFERS) == 3
    assert total(statistics.of_day(DAY), POLLS) == 2
    assert statistics.of_day(DAY)[Count("addresses", ("DE",))] == 2


def test_positions_of_two_lanes_have_nothing_to_do_with_each_other(statistics: Any) -> None:
    assert statistics.add([offer(position=at(5, "told")), offer(position=at(2, "offers#0"))]) == {}
    assert statistics.add([offer(position=at(5, "told")), offer(position=at(3, "offers#0"))]) == {}
    assert statistics.add([offer(position=at(9, "told")), offer(position=at(3, "offers#0"))]) == {}
    assert total(statistics.totals(), OFFERS) == 4


def test_a_record_that_tells_of_several_events_counts_all_of_them(statistics: Any) -> None:
    position = at(next(places))
    for _ in range(2):
        assert (
            statistics.add([offer(position=position), offer("FR", position=position), offer(position=position)]) == {}
        )
    assert total(statistics.totals(), OFFERS) == 3


def test_many_are_counted_side_by_side(client: Any) -> None:
    with ThreadPoolExecutor(8) as executor:
        statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW), executor.map)
        polls = [poll(f"a{number}") for number in range(40)]
        offers = [offer(f"c{number}") for number in range(50)]
        assert statistics.add([*polls, *offers]) == {}
    assert statistics.of_day(DAY)[Count("addresses", ("DE",))] == len(polls)
    assert total(statistics.totals(), OFFERS) == len(offers)


def test_another_environment_sees_what_was_there(client: Any) -> None:
    for _ in range(2):
        DynamoStatisticsStore(client, TABLE, Clock(NOW)).add([poll()])
    assert DynamoStatisticsStore(client, TABLE, Clock(NOW)).of_day(DAY)[Count("addresses", ("DE",))] == 1


class Dying:
    """A client whose function dies at a write: before it is done, or after."""

    def __init__(self, client: Any, writes: float, *, done: bool = False) -> None:
        self._client, self._left, self._done = client, writes, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def update_item(self, **request: Any) -> Any:
        self._left -= 1
        if self._left < 0 and not self._done:
            raise Died
        found = self._client.update_item(**request)
        if self._left < 0:
            raise Died
        return found


class Died(BaseException):
    """Of nothing that may be caught."""


@pytest.mark.parametrize("seed", some_of(range(12), every=4))
def test_whatever_dies_and_however_batches_are_cut_each_event_is_counted_once(client: Any, seed: int) -> None:
    """The oracle counts every event as it is told."""
    chance = random.Random(seed)
    told = [
        poll(
            chance.choice("abc"),
            nat=chance.choice(["unknown", "restricted"]),
            outcome=chance.choice(["idle", "rejected"]),
        )
        if chance.random() < 0.5
        else offer(chance.choice(["DE", "FR"]), at_ms=chance.choice([NOW, NOW + DAY_MS]))
        for _ in range(25)
    ]
    oracle = FakeStatisticsStore()
    oracle.add(told)
    done, environment = 0, DynamoStatisticsStore(client, TABLE, Clock(NOW))
    while done < len(told):
        batch = told[done : done + chance.randrange(1, 10)]
        if chance.random() < 0.5:
            dying: Any = Dying(client, chance.randrange(8), done=chance.random() < 0.5)
            with contextlib.suppress(Died):
                DynamoStatisticsStore(dying, TABLE, Clock(NOW)).add(batch)
            continue
        if chance.random() < 0.5:
            environment = DynamoStatisticsStore(client, TABLE, Clock(NOW))
        assert environment.add(batch) == {}
        done += chance.randrange(len(batch) + 1)  # what comes again from a checkpoint
    assert environment.totals() == oracle.totals()
    for day in (DAY, day_of(NOW + DAY_MS)):
        assert environment.of_day(day) == oracle.of_day(day)


def test_what_cant_be_written_is_named_and_is_counted_when_it_comes_again(client: Any) -> None:
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    key = {"pk": {"S": f"counters#{DAY}"}, "sk": {"S": "offers|sqs|DE"}}
    client.put_item(TableName=TABLE, Item=key | {"=c|unknown|denied": {"S": "no number"}})
    batch = [poll(), offer(), offer("FR"), offer()]
    failed = statistics.add(batch)
    assert failed.keys() == {batch[1].position, batch[3].position}
    assert all("UpdateItem" in reason for reason in failed.values())
    client.delete_item(TableName=TABLE, Key=key)
    assert statistics.add(batch[1:]) == {}
    assert total(statistics.totals(), OFFERS) == total(statistics.of_day(DAY), OFFERS) == 3


def test_what_follows_an_address_that_cant_be_noted_waits_for_it(client: Any) -> None:
    key = {"pk": {"S": f"seen#{DAY}"}, "sk": {"S": "a"}}
    statistics = DynamoStatisticsStore(Refusing(client, key), TABLE, Clock(NOW))  # type: ignore[arg-type]  # a client all the same
    batch = [offer(), poll(), offer()]
    assert statistics.add(batch).keys() == {batch[1].position, batch[2].position}
    assert total(statistics.totals(), OFFERS) == 1
    assert DynamoStatisticsStore(client, TABLE, Clock(NOW)).add(batch[1:]) == {}
    assert total(statistics.totals(), OFFERS) == 2


class Refusing:
    """A client that may not write one item."""

    def __init__(self, client: Any, key: Any) -> None:
        self._client, self._key = client, key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def update_item(self, **request: Any) -> Any:
        if request["Key"] == self._key:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": ""}}, "UpdateItem")
        return self._client.update_item(**request)


def item_bytes(item: Any) -> int:
    """As DynamoDB counts them: a number is a byte for two digits, and one more; here each has fourteen."""
    sizes = (len(name.encode()) + len(value.get("S", "").encode()) + 8 * ("N" in value) for name, value in item.items())
    return sum(sizes)


def lanes(name: str, number: int) -> list[str]:
    return [f"{name}#{each}" for each in range(number)]


def test_a_row_stays_below_a_kilobyte_whatever_is_counted(client: Any) -> None:
    """With all lanes that tell of its kind, and all labels that there are."""
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    type_, told, ends = "t" * 32, ["told"], lanes("offers", SHARDS)
    for nat, outcome, lane, extended in itertools.product(Nat, outcomes_of("poll"), told, (True, False)):
        position = at(next(places), lane)
        polled = poll(f"{nat}", position=position, nat=nat, type_=type_, outcome=outcome, relay_extension=extended)
        assert statistics.add([polled]) == {}
    for nat, status, lane in itertools.product(Nat, outcomes_of("offer"), ends):
        event = OfferEvent(
            id=event_id("offer", "c", at_ms=NOW), at_ms=NOW, outcome=status, nat=nat, country="DE", method="ampcache"
        )
        assert statistics.add([tally(event, at(next(places), lane))]) == {}
    for answered, lane in itertools.product(outcomes_of("answer"), [*told, *ends]):
        answer = AnswerEvent(
            id=event_id("answer", "c", at_ms=NOW), at_ms=NOW, outcome=answered, country="DE", proxy_type=type_
        )
        assert statistics.add([tally(answer, at(next(places), lane))]) == {}
    rows = [item for item in client.scan(TableName=TABLE)["Items"] if item["pk"]["S"].startswith("counters")]
    assert len(rows) == 4
    assert max(map(item_bytes, rows)) < 1_024


def test_an_event_is_one_write_of_all_time_one_of_its_day_and_one_of_a_new_address(client: Any) -> None:
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    made: list[str] = []
    client.meta.events.register("before-call.*", lambda model, **_: made.append(model.name))
    for each, writes in ((poll("a"), 3), (poll("a"), 2), (poll(None), 2), (offer(), 2)):
        made.clear()
        assert statistics.add([each]) == {}
        assert made == ["UpdateItem"] * writes


def test_what_is_of_a_day_expires(client: Any) -> None:
    DynamoStatisticsStore(client, TABLE, Clock(NOW)).add([poll()])
    items = client.scan(TableName=TABLE)["Items"]
    kept = {item["pk"]["S"].split("#")[0] for item in items if "expires_at" not in item}
    assert kept == {"counters"}
    days = {
        item["pk"]["S"]: (int(item["expires_at"]["N"]) * 1000 - NOW) / DAY_MS for item in items if "expires_at" in item
    }
    assert days == {f"counters#{DAY}": 9.0, f"seen#{DAY}": 2.0}


@pytest.mark.parametrize("name", ["of the future", "offers|sqs", "offers|sqs|DE|x", "clouds|sqs|DE"])
def test_a_newer_versions_counts_are_left_alone(client: Any, name: str) -> None:
    client.put_item(TableName=TABLE, Item={"pk": {"S": "counters"}, "sk": {"S": name}, "=a": {"N": "1"}})
    assert DynamoStatisticsStore(client, TABLE, Clock(NOW)).totals() == Counter()


# The day's key


def test_all_environments_have_one_key_a_day(client: Any) -> None:
    keys = [AddressHasher(client, TABLE, Clock(NOW)) for _ in range(3)]
    todays = {each.key(DAY) for each in keys}
    tomorrows = {each.key(day_of(NOW + DAY_MS)) for each in keys}
    assert len(todays) == len(tomorrows) == len({*todays} - {*tomorrows}) == 1
    assert {len(key) for key in todays} == {KEY_BYTES}


def test_a_key_is_gone_after_two_days(client: Any) -> None:
    AddressHasher(client, TABLE, Clock(NOW)).key(DAY)
    [item] = client.scan(TableName=TABLE)["Items"]
    assert int(item["expires_at"]["N"]) * 1000 == day_start_ms(DAY) + KEPT_MS == day_start_ms(DAY) + 2 * DAY_MS


def test_a_hash_is_the_days_keys(client: Any) -> None:
    clock = Clock(NOW)
    hashes = AddressHasher(client, TABLE, clock, draw=lambda size: b"k" * size)
    assert hashes.of("192.0.2.1") == keyed_hash("192.0.2.1", b"k" * KEY_BYTES)
    assert hashes.of("nowhere") is None


def test_where_there_is_no_key_there_is_no_hash(client: Any) -> None:
    assert AddressHasher(client, "no such table", Clock(NOW)).of("192.0.2.1") is None
