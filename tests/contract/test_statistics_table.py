"""The statistics keep their promises: in DynamoDB on moto, and the fake beside it; and the day's key."""

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.aws.rendezvous.address_keys import KEPT_MS, AddressHasher
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.errors import CallFailed
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.counts.pages import write_daily_log, write_prometheus_page
from sluice.rendezvous.counts.statistics import (
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    OFFERS,
    POLLS,
    PROXIES,
    Tally,
    tally,
    total,
)
from sluice.rendezvous.protocol.addresses import KEY_BYTES, hash_address
from sluice.rendezvous.protocol.ends import list_outcomes
from sluice.rendezvous.protocol.matching import Nat
from sluice.times import DAY_MS, format_day, parse_day_ms
from tests.fakes import Clock, FakeStatisticsStore
from tests.tables import table_in_memory

NOW = 1_700_000_000_000
DAY = format_day(NOW)
TABLE = "t"


@pytest.fixture
def client() -> Iterator[Any]:
    with table_in_memory() as made:
        yield made


@pytest.fixture(params=["dynamodb", "fake"])
def statistics(request: pytest.FixtureRequest, client: Any) -> Any:
    return FakeStatisticsStore() if request.param == "fake" else DynamoStatisticsStore(client, TABLE, Clock(NOW))


def tallied(event: Event) -> Tally:
    found = tally(event)
    assert found is not None
    return found


def offer(
    country: str = "DE",
    *,
    method: str = "sqs",
    nat: str = "unknown",
    at_ms: int = NOW,
) -> Tally:
    id_ = derive_event_id("offer", "c", at_ms=at_ms)
    event = OfferEvent(id=id_, at_ms=at_ms, outcome="denied", country=country, method=method, nat=nat)
    return tallied(event)


def poll(
    address: str | None = "a",
    *,
    nat: str = "unknown",
    type_: str = "webext",
    outcome: str = "idle",
    relay_extension: bool = False,
    at_ms: int = NOW,
) -> Tally:
    event = PollEvent(
        id=derive_event_id("poll", "p", at_ms=at_ms),
        at_ms=at_ms,
        outcome=outcome,
        nat=nat,
        country="DE",
        proxy_type=type_,
        address=address,
        relay_extension=relay_extension,
    )
    return tallied(event)


def test_counts_add_up_for_ever_and_by_day(statistics: Any) -> None:
    for at_ms in (NOW, NOW, NOW + DAY_MS):
        statistics.add([offer(at_ms=at_ms), offer("FR", at_ms=at_ms)])
    assert total(statistics.read_totals(), OFFERS) == 6
    assert total(statistics.read_totals(), OFFERS, cc="DE") == 3
    assert total(statistics.read_day(DAY), OFFERS) == 4
    assert total(statistics.read_day(format_day(NOW + DAY_MS)), OFFERS) == 2
    assert statistics.read_day("2001-01-01") == Counter()


def test_a_batch_may_be_of_several_days_and_empty(statistics: Any) -> None:
    statistics.add([])
    statistics.add([offer(), offer(at_ms=NOW - DAY_MS), poll(), poll(at_ms=NOW - DAY_MS)])
    assert total(statistics.read_totals(), OFFERS) == 2
    for day in (DAY, format_day(NOW - DAY_MS)):
        assert total(statistics.read_day(day), PROXIES, cc="DE") == 1


def test_an_address_counts_once_a_day_also_in_later_batches(statistics: Any) -> None:
    for nat in ("unknown", "unknown", "restricted"):
        statistics.add([poll(nat=nat), poll(nat=nat), poll("b"), poll(None)])
    found = statistics.read_day(DAY)
    assert total(found, PROXIES, cc="DE") == 2
    assert found[ADDRESSES_BY_NAT.build_count_name("unknown")] == 2
    assert found[ADDRESSES_BY_NAT.build_count_name("restricted")] == 1
    assert found[ADDRESSES_BY_TYPE.build_count_name("webext")] == 2
    assert total(found, POLLS) == total(statistics.read_totals(), POLLS) == 12
    assert not [count for count in statistics.read_totals() if count.startswith("d")]


def test_what_is_added_again_counts_again_and_its_addresses_dont(statistics: Any) -> None:
    batch = [offer(), poll(), offer(), poll("b")]
    for _ in range(2):
        statistics.add(batch)
    assert total(statistics.read_totals(), OFFERS) == total(statistics.read_day(DAY), POLLS) == 4
    assert total(statistics.read_day(DAY), PROXIES, cc="DE") == 2


def test_many_are_counted_side_by_side(client: Any) -> None:
    with ThreadPoolExecutor(8) as executor:
        statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW), executor.map)
        polls = [poll(f"a{number}") for number in range(40)]
        offers = [offer(f"c{number}") for number in range(50)]
        statistics.add([*polls, *offers])
    assert total(statistics.read_day(DAY), PROXIES, cc="DE") == len(polls)
    assert total(statistics.read_totals(), OFFERS) == len(offers)


def test_another_environment_sees_what_was_there(client: Any) -> None:
    for _ in range(2):
        DynamoStatisticsStore(client, TABLE, Clock(NOW)).add([poll()])
    assert total(DynamoStatisticsStore(client, TABLE, Clock(NOW)).read_day(DAY), PROXIES, cc="DE") == 1


def test_a_row_that_cant_be_written_is_named(client: Any) -> None:
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    key = {"pk": {"S": f"counters#{DAY}"}, "sk": {"S": "sqs|DE"}}
    client.put_item(TableName=TABLE, Item=key | {"=c|unknown|denied|DE|sqs": {"S": "no number"}})
    with pytest.raises(CallFailed, match="UpdateItem"):
        statistics.add([poll(), offer(), offer("FR"), offer()])


def test_where_an_address_cant_be_marked_nothing_is_counted(client: Any) -> None:
    key = {"pk": {"S": f"seen#{DAY}"}, "sk": {"S": "a"}}
    statistics = DynamoStatisticsStore(Refusing(client, key), TABLE, Clock(NOW))  # type: ignore[arg-type]  # a client all the same
    batch = [offer(), poll(), offer()]
    with pytest.raises(CallFailed):
        statistics.add(batch)
    assert statistics.read_totals() == Counter()
    DynamoStatisticsStore(client, TABLE, Clock(NOW)).add(batch)
    assert total(statistics.read_totals(), OFFERS) == 2


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


def test_a_row_is_of_a_kilobyte_with_the_three_usual_nats_and_never_of_more_than_two(client: Any) -> None:
    """With all other labels that there are."""
    for nats, kilobytes in (([Nat.RESTRICTED, Nat.UNRESTRICTED, Nat.UNKNOWN], 1), (list(Nat), 2)):
        statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
        for nat, outcome, extended in itertools.product(nats, list_outcomes("poll"), (True, False)):
            statistics.add([poll(f"{nat}", nat=nat, type_="standalone", outcome=outcome, relay_extension=extended)])
        for nat, status in itertools.product(nats, list_outcomes("offer")):
            event = OfferEvent(
                id=derive_event_id("offer", "c", at_ms=NOW),
                at_ms=NOW,
                outcome=status,
                nat=nat,
                country="DE",
                method="ampcache",
            )
            statistics.add([tallied(event)])
        for answered in list_outcomes("answer"):
            id_ = derive_event_id("answer", "c", at_ms=NOW)
            answer = AnswerEvent(id=id_, at_ms=NOW, outcome=answered, country="DE", proxy_type="standalone")
            statistics.add([tallied(answer)])
        rows = [item for item in client.scan(TableName=TABLE)["Items"] if item["pk"]["S"].startswith("counters")]
        assert len(rows) == 6  # of all time and of a day: offers, proxies, and late answers, whose proxy is not known
        assert max(map(item_bytes, rows)) <= kilobytes * 1_024


def test_an_event_is_one_write_of_all_time_one_of_its_day_and_one_of_a_new_address(client: Any) -> None:
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    made: list[str] = []
    client.meta.events.register("before-call.*", lambda model, **_: made.append(model.name))
    for each, writes in ((poll("a"), 3), (poll("a"), 2), (poll(None), 2), (offer(), 2)):
        made.clear()
        statistics.add([each])
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


@pytest.mark.parametrize("name", ["of the future", "c|unknown|denied", "c|unknown|denied|DE|sqs|x", "new|sqs|DE"])
def test_another_versions_counts_are_left_alone(client: Any, name: str) -> None:
    client.put_item(TableName=TABLE, Item={"pk": {"S": "counters"}, "sk": {"S": "sqs|DE"}, f"={name}": {"N": "1"}})
    totals = DynamoStatisticsStore(client, TABLE, Clock(NOW)).read_totals()
    assert (write_prometheus_page(totals, {}), write_daily_log(DAY, totals)) == (
        write_prometheus_page({}, {}),
        write_daily_log(DAY, {}),
    )


# The day's key


def test_all_environments_have_one_key_a_day(client: Any) -> None:
    keys = [AddressHasher(client, TABLE, Clock(NOW)) for _ in range(3)]
    todays = {each.get_key(DAY) for each in keys}
    tomorrows = {each.get_key(format_day(NOW + DAY_MS)) for each in keys}
    assert len(todays) == len(tomorrows) == len({*todays} - {*tomorrows}) == 1
    assert {len(key) for key in todays} == {KEY_BYTES}


def test_a_key_is_gone_after_two_days(client: Any) -> None:
    AddressHasher(client, TABLE, Clock(NOW)).get_key(DAY)
    [item] = client.scan(TableName=TABLE)["Items"]
    assert int(item["expires_at"]["N"]) * 1000 == parse_day_ms(DAY) + KEPT_MS == parse_day_ms(DAY) + 2 * DAY_MS


def test_a_hash_is_the_days_keys(client: Any) -> None:
    clock = Clock(NOW)
    hashes = AddressHasher(client, TABLE, clock, random_bytes=lambda size: b"k" * size)
    assert hashes.hash_address("192.0.2.1") == hash_address("192.0.2.1", b"k" * KEY_BYTES)
    assert hashes.hash_address("nowhere") is None


def test_where_there_is_no_key_there_is_no_hash(client: Any) -> None:
    assert AddressHasher(client, "no such table", Clock(NOW)).hash_address("192.0.2.1") is None
