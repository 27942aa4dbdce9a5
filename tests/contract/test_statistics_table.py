"""The statistics keep their port's promises: in DynamoDB on moto, and the fake beside it; and the day's key."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from sluice.aws.rendezvous.address_keys import KEPT_MS, AddressHasher
from sluice.aws.rendezvous.statistics_store import MAX_COUNTS, MAX_MARKS, DynamoStatisticsStore
from sluice.rendezvous.counts.events import OfferEvent, PollEvent, event_id
from sluice.rendezvous.counts.statistics import OFFERS, POLLS, Count, Tally, tally, total
from sluice.rendezvous.ports import StatisticsStore
from sluice.rendezvous.protocol.addresses import KEY_BYTES, keyed_hash
from sluice.times import DAY_MS, day_of, day_start_ms
from tests.fakes import Clock, FakeStatisticsStore

NOW = 1_700_000_000_000
DAY = day_of(NOW)
TABLE = "t"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        made = boto3.client("dynamodb", region_name="eu-central-1")
        made.create_table(
            TableName=TABLE,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            BillingMode="PAY_PER_REQUEST",
        )
        yield made


@pytest.fixture(params=["dynamodb", "fake"])
def statistics(request: pytest.FixtureRequest, client: Any) -> StatisticsStore:
    return FakeStatisticsStore() if request.param == "fake" else DynamoStatisticsStore(client, TABLE, Clock(NOW))


def offer(number: int = 0, *, country: str = "DE", at_ms: int = NOW) -> Tally:
    id_ = event_id("offer", str(number), at_ms=at_ms)
    return tally(OfferEvent(id=id_, at_ms=at_ms, outcome="denied", country=country, method="sqs"))


def poll(number: int = 0, *, address: str | None = "a", nat: str = "unknown", at_ms: int = NOW) -> Tally:
    id_ = event_id("poll", str(number), at_ms=at_ms)
    return tally(PollEvent(id=id_, at_ms=at_ms, outcome="idle", nat=nat, country="DE", address=address))


def test_counts_add_up_for_ever_and_by_day(statistics: StatisticsStore) -> None:
    for at_ms in (NOW, NOW, NOW + DAY_MS):
        assert statistics.add([offer(at_ms=at_ms), offer(1, country="FR", at_ms=at_ms)]) == {}
    assert total(statistics.totals(), OFFERS) == 6
    assert total(statistics.totals(), OFFERS, cc="DE") == 3
    assert total(statistics.of_day(DAY), OFFERS) == 4
    assert total(statistics.of_day(day_of(NOW + DAY_MS)), OFFERS) == 2
    assert statistics.of_day("2001-01-01") == Counter()


def test_a_batch_may_be_of_several_days_and_empty(statistics: StatisticsStore) -> None:
    assert statistics.add([]) == {}
    assert statistics.add([Tally("id", DAY, ())]) == {}
    assert statistics.add([offer(), offer(at_ms=NOW - DAY_MS), poll(), poll(at_ms=NOW - DAY_MS)]) == {}
    assert total(statistics.totals(), OFFERS) == 2
    for day in (DAY, day_of(NOW - DAY_MS)):
        assert statistics.of_day(day)[Count("addresses", ("DE",))] == 1


def test_an_address_counts_once_a_day_also_in_later_batches(statistics: StatisticsStore) -> None:
    for nat in ("unknown", "unknown", "restricted"):
        statistics.add([poll(nat=nat), poll(nat=nat), poll(address="b"), poll(address=None)])
    found = statistics.of_day(DAY)
    assert found[Count("addresses", ("DE",))] == 2
    assert found[Count("addresses_by_nat", ("unknown",))] == 2
    assert found[Count("addresses_by_nat", ("restricted",))] == 1
    assert total(found, POLLS) == total(statistics.totals(), POLLS) == 12
    assert not [count for count in statistics.totals() if count.family.startswith("addresses")]


def test_more_than_a_transaction_holds_is_counted_all_the_same(statistics: StatisticsStore) -> None:
    polls = [poll(number, address=f"a{number}") for number in range(2 * MAX_MARKS)]
    offers = [offer(number, country=f"c{number}") for number in range(MAX_COUNTS + 50)]
    assert statistics.add([*polls, *offers]) == {}
    assert statistics.of_day(DAY)[Count("addresses", ("DE",))] == len(polls)
    assert total(statistics.totals(), OFFERS) == len(offers)


def test_another_environment_sees_what_was_there(client: Any) -> None:
    for _ in range(2):
        DynamoStatisticsStore(client, TABLE, Clock(NOW)).add([poll()])
    assert DynamoStatisticsStore(client, TABLE, Clock(NOW)).of_day(DAY)[Count("addresses", ("DE",))] == 1


def test_an_address_that_another_environment_counts_meanwhile_counts_once(client: Any) -> None:
    meanwhile = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    statistics = DynamoStatisticsStore(Interrupted(client, lambda: meanwhile.add([poll(1)])), TABLE, Clock(NOW))  # type: ignore[arg-type]  # a client all the same
    assert statistics.add([poll(2)]) == {}
    found = statistics.of_day(DAY)
    assert found[Count("addresses", ("DE",))] == 1
    assert total(found, POLLS) == 2


class Interrupted:
    """A client with whose first look at what is there something else happens."""

    def __init__(self, client: Any, meanwhile: Callable[[], object]) -> None:
        self._client, self._meanwhile = client, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_get_item(self, **request: Any) -> Any:
        found = self._client.batch_get_item(**request)
        while self._meanwhile:
            self._meanwhile.pop()()
        return found


def test_what_cant_be_written_is_counted_by_nobody_and_named(client: Any) -> None:
    statistics = DynamoStatisticsStore(client, TABLE, Clock(NOW))
    statistics.add([offer(1)])
    client.update_item(
        TableName=TABLE,
        Key={"pk": {"S": f"counters#{DAY}"}, "sk": {"S": OFFERS.name}},
        UpdateExpression="SET #n = :text",
        ExpressionAttributeNames={"#n": "=unknown|denied|DE|sqs"},
        ExpressionAttributeValues={":text": {"S": "no number"}},
    )
    before = statistics.totals()
    failed = statistics.add([offer(2), poll()])
    assert failed.keys() == {offer(2).event_id, poll().event_id}
    assert all("TransactWriteItems" in reason for reason in failed.values())
    assert statistics.totals() == before


def test_what_is_of_a_day_expires(client: Any) -> None:
    DynamoStatisticsStore(client, TABLE, Clock(NOW)).add([poll()])
    items = client.scan(TableName=TABLE)["Items"]
    kept = {item["pk"]["S"].split("#")[0] for item in items if "expires_at" not in item}
    assert kept == {"counters"}
    days = {
        item["pk"]["S"]: (int(item["expires_at"]["N"]) * 1000 - NOW) / DAY_MS for item in items if "expires_at" in item
    }
    assert days == {f"counters#{DAY}": 9.0, f"seen#{DAY}": 2.0}


def test_a_newer_versions_counts_are_left_alone(client: Any) -> None:
    client.put_item(TableName=TABLE, Item={"pk": {"S": "counters"}, "sk": {"S": "of the future"}, "=a": {"N": "1"}})
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
