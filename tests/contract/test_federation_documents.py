"""Documents keep their port's promises: the DynamoDB adapter on moto, and the fake beside it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pytest

from sluice.aws.documents import MAX_READS, PART_BYTES, DynamoDocument
from sluice.aws.federation.routes import MAX_WAIT_MS, ForwardTimes, RouteRates
from sluice.aws.ticks import Ticks
from sluice.errors import CallFailed
from tests.federation_fakes import FakeDocument
from tests.tables import table_in_memory


@dataclass
class Interrupted:
    """A client that lets something else happen just before a call."""

    client: Any
    operation: str
    meanwhile: Callable[[], object]
    times: int = 1

    def __getattr__(self, name: str) -> Any:
        if name == self.operation and self.times:
            self.times -= 1
            self.meanwhile()
        return getattr(self.client, name)


@dataclass
class LostAnswer:
    """A client that makes conditional writes twice, as botocore does where the first answer doesn't come."""

    client: Any

    def put_item(self, **given: Any) -> Any:
        if "ConditionExpression" in given:
            self.client.put_item(**given)
        return self.client.put_item(**given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@pytest.fixture
def client() -> Iterator[Any]:
    with table_in_memory() as client:
        yield client


TOKENS = count()


def stored(client: Any, name: str = "d") -> DynamoDocument:
    return DynamoDocument(client=client, table="t", name=name, new_token=lambda: f"token-{next(TOKENS)}")


@pytest.fixture(params=["dynamodb", "fake"])
def document(request: pytest.FixtureRequest, client: Any) -> DynamoDocument:
    return stored(client) if request.param == "dynamodb" else FakeDocument()


def items(client: Any) -> list[str]:
    return sorted(item["sk"]["S"] for item in client.scan(TableName="t")["Items"])


LARGE = bytes(range(256)) * (3 * PART_BYTES // 256) + b"end"


def test_before_the_first_save_there_is_nothing(document: DynamoDocument) -> None:
    assert (document.load(), document.version()) == ((None, 0), 0)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * PART_BYTES, b"x" * (PART_BYTES + 1), LARGE])
def test_what_is_saved_is_loaded(document: DynamoDocument, content: bytes) -> None:
    assert document.save(content, after=0)
    assert (document.load(), document.version()) == ((content, 1), 1)


def test_of_two_who_read_the_same_version_one_writes_and_the_other_changes_nothing(document: DynamoDocument) -> None:
    assert document.save(LARGE, after=0)
    assert document.save(b"winner", after=1)
    assert not document.save(b"loser" * PART_BYTES, after=1)
    assert not document.save(b"loser", after=0)
    assert not document.save(b"too early", after=7)
    assert document.load() == (b"winner", 2)


def test_a_replaced_versions_parts_are_deleted(client: Any) -> None:
    document = stored(client)
    assert document.save(LARGE, after=0)
    assert document.save(b"small", after=1)
    assert len(items(client)) == 2
    assert "head" in items(client)


@pytest.mark.parametrize("first", [True, False], ids=["the first save", "a later one"])
def test_who_loses_amid_a_save_takes_its_parts_away(client: Any, first: bool) -> None:
    rival = stored(client)
    if not first:
        assert rival.save(b"before", after=0)
    after = 0 if first else 1
    loser = stored(Interrupted(client, "put_item", lambda: rival.save(b"rival", after=after)))
    assert not loser.save(LARGE, after=after)
    assert rival.load() == (b"rival", after + 1)
    assert len(items(client)) == 2


@pytest.mark.parametrize("first", [True, False], ids=["the first save", "a later one"])
def test_a_save_whose_answer_was_lost_and_that_was_tried_again_is_a_save(client: Any, first: bool) -> None:
    if not first:
        assert stored(client).save(b"before", after=0)
    after = 0 if first else 1
    document = stored(LostAnswer(client))
    assert document.save(LARGE, after=after)
    assert stored(client).load() == (LARGE, after + 1)
    assert len(items(client)) == 3


def test_who_reads_while_it_is_replaced_gets_one_version_whole(client: Any) -> None:
    rival = stored(client)
    assert rival.save(LARGE, after=0)
    versions = count(1)
    reader = stored(Interrupted(client, "get_item", lambda: None))
    reads = count()

    def replace_amid() -> None:
        if next(reads) % 2:  # after the head was read, before its part
            rival.save(b"v" * PART_BYTES * 2, after=next(versions))

    reader.client.meanwhile, reader.client.times = replace_amid, 4  # type: ignore[attr-defined]  # it is an Interrupted
    content, version = reader.load()
    assert (content, version) == rival.load()


def test_a_value_that_never_holds_still_is_an_error_that_may_pass(client: Any) -> None:
    rival = stored(client)
    assert rival.save(b"0", after=0)
    versions, reads = count(1), count()

    def replace_amid() -> None:
        if next(reads) % 2:
            assert rival.save(b"again", after=next(versions))

    reader = stored(Interrupted(client, "get_item", replace_amid, times=99))
    with pytest.raises(CallFailed, match=f"replaced during each of {MAX_READS} reads"):
        reader.load()


def test_documents_of_other_names_are_others(client: Any) -> None:
    assert stored(client, "one").save(b"1", after=0)
    assert stored(client, "two").load() == (None, 0)
    assert stored(client, "two").save(b"2", after=0)
    assert stored(client, "one").load() == (b"1", 1)


def test_a_tick_is_armed_by_one(client: Any) -> None:
    ticks = Ticks(client, "t", "links")
    assert ticks.claim(due_at_ms=1_000, now_ms=0)
    assert not ticks.claim(due_at_ms=1_000, now_ms=0)
    assert not ticks.claim(due_at_ms=9_000, now_ms=500)
    assert ticks.claim(due_at_ms=600, now_ms=500)  # sooner than the one that is armed
    assert ticks.claim(due_at_ms=2_000, now_ms=1_000)  # that one is over
    assert Ticks(client, "t", "other").claim(due_at_ms=9_000, now_ms=0)


def test_the_last_forward_of_each_bridge_is_known(client: Any) -> None:
    forwards = ForwardTimes(client, "t")
    assert forwards.read_all() == {}
    for bridge, at_ms in (("a", 5_000), ("b", 6_000), ("a", 7_000)):
        forwards.record(bridge, at_ms=at_ms)
    assert forwards.read_all() == {"a": 7_000, "b": 6_000}


@pytest.mark.parametrize("rate", [1, 3, 7, 1_000])
def test_turns_of_a_route_follow_each_other_whoever_takes_them(client: Any, rate: int) -> None:
    luck, at_ms, taken = Random(rate), 1_700_000_000_000, list[tuple[int, int]]()
    for _ in range(60):
        at_ms += luck.choice([0, 0, 1, 900 // rate, 20_000])
        messages = luck.randint(1, rate)
        turn_ms = RouteRates(client, "t").reserve_ms("r", messages=messages, rate=rate, now_ms=at_ms)
        free_ms = max(at_ms, taken[-1][0] + 1_000 * taken[-1][1] / rate) if taken else at_ms
        if turn_ms is None:
            assert free_ms - at_ms > MAX_WAIT_MS - 1
        else:
            assert -1 < turn_ms - free_ms < 2  # rounded up to milliseconds
            taken.append((turn_ms, messages))
    for first, (began_ms, _) in enumerate(taken):
        for last in range(first, len(taken)):
            # All but the last batch have had their time by then.
            assert sum(number for _, number in taken[first:last]) <= rate * (taken[last][0] - began_ms + 1) / 1_000


def test_who_loses_a_race_for_a_turn_takes_the_next(client: Any) -> None:
    rates = RouteRates(client, "t")
    assert rates.reserve_ms("r", messages=2, rate=1, now_ms=10_000) == 10_000
    raced: Any = Interrupted(client, "update_item", lambda: rates.reserve_ms("r", messages=1, rate=1, now_ms=10_000))
    assert RouteRates(raced, "t").reserve_ms("r", messages=1, rate=1, now_ms=10_000) == 13_000
    assert rates.reserve_ms("other", messages=1, rate=1, now_ms=10_000) == 10_000
    assert rates.reserve_ms("r", messages=2, rate=1, now_ms=14_500) == 14_500
    assert rates.reserve_ms("r", messages=9, rate=1, now_ms=14_500) == 16_500
    assert rates.reserve_ms("r", messages=1, rate=1, now_ms=14_500) is None
