"""Change logs keep their port's promises: the DynamoDB adapter on moto, and the fake beside it."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sluice.aws.change_logs import MAX_CHANGES, MAX_LOG_BYTES, DynamoChangeLog
from sluice.aws.documents import MAX_READS, PART_BYTES
from sluice.errors import CallFailed
from sluice.federation.matching.bindings import MAX_CHANGE_BYTES, BindingsUpdate
from tests.federation_fakes import FakeChangeLog
from tests.tables import table_in_memory


class Died(Exception):
    """The function ends here."""


@dataclass
class Disturbed:
    """A client that lets something happen before each call; of those in `answers` the first answer is lost."""

    client: Any
    before: Callable[[str], object] = lambda _: None
    answers: frozenset[str] = frozenset()
    meanwhile: Callable[[str], object] = lambda _: None  # between an answer that is lost and the next attempt

    def __getattr__(self, name: str) -> Any:
        made = getattr(self.client, name)
        if name not in {"get_item", "put_item", "update_item", "transact_write_items", "batch_write_item"}:
            return made

        def call(**given: Any) -> Any:
            self.before(name)
            if name in self.answers:
                made(**given)
                self.meanwhile(name)
            return made(**given)

        return call


@pytest.fixture
def client() -> Iterator[Any]:
    with table_in_memory() as client:
        yield client


TOKENS = count()


def log_in(client: Any, name: str = "d") -> DynamoChangeLog:
    return DynamoChangeLog(client=client, table="t", name=name, new_token=lambda: f"token-{next(TOKENS)}")


@pytest.fixture(params=["dynamodb", "fake"])
def log(request: pytest.FixtureRequest, client: Any) -> DynamoChangeLog:
    return log_in(client) if request.param == "dynamodb" else FakeChangeLog()


def items(client: Any, name: str = "d") -> list[str]:
    pages = client.get_paginator("scan").paginate(TableName="t")
    found = [item for page in pages for item in page["Items"] if item["pk"]["S"] == f"document#{name}"]
    return sorted(item["sk"]["S"] for item in found)


def said(news: BindingsUpdate) -> tuple[int, list[bytes], int | None, bytes | None]:
    return news.version, list(news.changes), news.base, news.snapshot


LARGE = bytes(range(256)) * (PART_BYTES // 256) + b"end"


def test_before_the_first_change_there_is_nothing(log: DynamoChangeLog) -> None:
    assert said(log.read_since(None)) == (0, [], 0, None)
    assert said(log.read_since(0)) == (0, [], None, None)
    assert not log.is_long


def test_what_was_appended_is_read_by_who_has_nothing_and_by_who_has_a_part(log: DynamoChangeLog) -> None:
    for version, change in enumerate([b"one", b"two", b"x" * MAX_CHANGE_BYTES]):
        assert log.append(change, after=version)
    assert said(log.read_since(None)) == (3, [b"one", b"two", b"x" * MAX_CHANGE_BYTES], 0, None)
    assert said(log.read_since(1)) == (3, [b"two", b"x" * MAX_CHANGE_BYTES], None, None)
    assert said(log.read_since(3)) == (3, [], None, None)


def test_of_two_who_read_the_same_version_one_writes_and_the_other_changes_nothing(log: DynamoChangeLog) -> None:
    assert log.append(b"1", after=0)
    assert log.append(b"winner", after=1)
    for after in (0, 1, 7):
        assert not log.append(b"loser", after=after)
        assert not log.save(b"loser", after=after, version=after)
        assert not log.save(b"loser", after=after, version=after + 1)
    assert said(log.read_since(None)) == (2, [b"1", b"winner"], 0, None)


@pytest.mark.parametrize("snapshot", [b"", b"x" * PART_BYTES, LARGE])
def test_a_snapshot_takes_the_place_of_the_changes_up_to_it(log: DynamoChangeLog, snapshot: bytes) -> None:
    assert log.append(b"1", after=0)
    assert log.append(b"2", after=1)
    assert log.save(snapshot, after=2, version=2)
    assert log.append(b"3", after=2)
    assert said(log.read_since(None)) == (3, [b"3"], 2, snapshot)
    # Who has an older version still follows by changes.
    assert said(log.read_since(1)) == (3, [b"2", b"3"], None, None)


def test_a_snapshot_may_be_a_version_of_its_own(log: DynamoChangeLog) -> None:
    assert log.append(b"1", after=0)
    assert log.save(LARGE, after=1, version=2)
    assert log.append(b"3", after=2)
    assert said(log.read_since(None)) == (3, [b"3"], 2, LARGE)
    assert said(log.read_since(1)) == (3, [b"3"], 2, LARGE)
    assert said(log.read_since(2)) == (3, [b"3"], None, None)


def test_a_snapshot_may_come_first(log: DynamoChangeLog) -> None:
    assert log.save(b"all", after=0, version=1)
    assert said(log.read_since(None)) == (1, [], 1, b"all")


def test_who_is_two_snapshots_behind_reads_the_snapshot(log: DynamoChangeLog) -> None:
    for version in range(4):
        assert log.append(f"{version + 1}".encode(), after=version)
        assert log.save(f"up to {version + 1}".encode(), after=version + 1, version=version + 1)
    assert said(log.read_since(3)) == (4, [b"4"], None, None)
    assert said(log.read_since(2)) == (4, [], 4, b"up to 4")


def test_what_nobody_needs_is_deleted(client: Any) -> None:
    log = log_in(client)
    for version in range(5):
        assert log.append(b"x", after=version)
        assert log.save(LARGE, after=version + 1, version=version + 1)
    changes = [each for each in items(client) if each.startswith("change#")]
    assert changes == ["change#000000000004", "change#000000000005"]
    assert len(items(client)) == 1 + 2 + 2


def test_a_log_is_long_by_number_or_by_size(client: Any) -> None:
    log, times = log_in(client), -(-MAX_LOG_BYTES // MAX_CHANGE_BYTES)
    for version in range(times):
        assert not log.is_long
        assert log.append(b"x" * MAX_CHANGE_BYTES, after=version)
    assert log.is_long
    assert log.save(b"all", after=times, version=times)
    assert not log.is_long
    client.update_item(
        TableName="t",
        Key={"pk": {"S": "document#d"}, "sk": {"S": "head"}},
        UpdateExpression="SET snapshot_version = :version",
        ExpressionAttributeValues={":version": {"N": str(times - MAX_CHANGES)}},
    )
    log.read_since(times)
    assert log.is_long


def test_a_change_amid_a_snapshot_stays(client: Any) -> None:
    rival, after = log_in(client), count(1)
    assert rival.append(b"1", after=0)
    log = log_in(Disturbed(client, lambda _: rival.append(b"rival's", after=next(after))))
    assert log.save(b"up to 1", after=1, version=1) is False  # it was too late already
    log = log_in(client)
    last = log.read_since(None).version

    def amid(call: str) -> None:
        if call == "put_item":
            assert rival.append(b"later", after=rival.read_since(None).version)

    assert log.read_since(None).version == last
    disturbed = log_in(Disturbed(client, amid))
    disturbed.read_since(None)
    assert disturbed.save(LARGE, after=last, version=last)
    assert said(log_in(client).read_since(None)) == (last + 2, [b"later"] * 2, last, LARGE)
    assert said(log.read_since(last)) == (last + 2, [b"later"] * 2, None, None)


def test_a_change_amid_a_bulk_change_wins(client: Any) -> None:
    rival, log = log_in(client), log_in(Disturbed(client))
    assert rival.append(b"1", after=0)
    log.read_since(None)
    log.client.before = lambda call: call == "put_item" and rival.append(b"2", after=1)  # type: ignore[attr-defined]  # it is disturbed
    assert not log.save(b"bulk", after=1, version=2)
    assert said(rival.read_since(None)) == (2, [b"1", b"2"], 0, None)
    assert len(items(client)) == 3


def test_of_two_snapshots_at_the_same_time_one_is_kept_and_nothing_of_the_other(client: Any) -> None:
    rival = log_in(client)
    assert rival.append(b"1", after=0)
    written: list[bool] = []

    def amid(call: str) -> None:
        if call == "put_item" and not written:
            rival.read_since(None)
            written.append(rival.save(b"r" * 2 * PART_BYTES, after=1, version=1))

    assert not log_in(Disturbed(client, amid)).save(LARGE, after=1, version=1)
    assert written == [True]
    assert said(log_in(client).read_since(None)) == (1, [], 1, b"r" * 2 * PART_BYTES)
    assert len(items(client)) == 1 + 1 + 2


@pytest.mark.parametrize("version", [2, 3])
def test_whoever_dies_amid_a_snapshot_breaks_nothing_and_leaves_nothing(client: Any, version: int) -> None:
    """At each of its calls, before or after it is done; whoever comes next writes a snapshot and cleans up."""
    for dies_at in range(30):
        name = f"d{dies_at}"
        ours = log_in(client, name)
        assert ours.append(b"1", after=0)
        assert ours.save(LARGE, after=1, version=1)
        assert ours.append(b"2", after=1)
        calls = count()

        def die(_: str, at: int = dies_at, calls: Iterator[int] = calls) -> None:
            if next(calls) == at:
                raise Died

        died, log = False, log_in(Disturbed(client, die), name)
        try:
            log.save(b"n" * 2 * PART_BYTES, after=2, version=version)
        except Died:
            died = True
        news = log_in(client, name).read_since(None)
        assert said(news) in [
            (2, [b"2"], 1, LARGE),
            (version, [], version, b"n" * 2 * PART_BYTES),
        ]
        last = news.version
        for again in range(2):
            other = log_in(client, name)
            assert other.append(b"more", after=last + again)
            assert other.save(b"last", after=last + again + 1, version=last + again + 1)
        left = items(client, name)
        assert sum(each.startswith("token") for each in left) == 1
        assert sum(each.startswith("change") for each in left) <= 3
        if not died:
            break
    assert not died


@pytest.mark.parametrize("first", [True, False], ids=["the first change", "a later one"])
def test_a_change_whose_answer_was_lost_and_that_was_tried_again_is_made_once(client: Any, first: bool) -> None:
    if not first:
        assert log_in(client).append(b"before", after=0)
    after = 0 if first else 1
    log = log_in(Disturbed(client, answers=frozenset({"transact_write_items"})))
    assert log.append(b"ours", after=after)
    assert log.append(b"next", after=after + 1)
    assert said(log_in(client).read_since(after)) == (after + 2, [b"ours", b"next"], None, None)


@pytest.mark.parametrize("version", [1, 2])
def test_a_snapshot_whose_answers_were_lost_and_that_was_tried_again_is_a_snapshot(client: Any, version: int) -> None:
    assert log_in(client).append(b"1", after=0)
    log = log_in(Disturbed(client, answers=frozenset({"update_item", "put_item"})))
    assert log.save(LARGE, after=1, version=version)
    assert log.append(b"next", after=version)
    assert said(log_in(client).read_since(None)) == (version + 1, [b"next"], version, LARGE)


def test_a_snapshot_is_in_place_though_its_answer_was_lost_and_the_next_writer_has_begun(client: Any) -> None:
    """Its parts aren't taken for those of a snapshot that came to nothing."""
    assert log_in(client).append(b"1", after=0)
    updates = count()

    def die(call: str) -> None:
        if call == "put_item":
            raise Died

    def begin(call: str) -> None:
        if call == "update_item" and next(updates) == 1:
            with pytest.raises(Died):
                log_in(Disturbed(client, die)).save(b"next", after=1, version=1)

    log = log_in(Disturbed(client, answers=frozenset({"update_item"}), meanwhile=begin))
    assert log.save(LARGE, after=1, version=1)
    assert said(log_in(client).read_since(None)) == (1, [], 1, LARGE)


def test_of_a_first_bulk_change_and_another_change_one_wins(client: Any) -> None:
    rival = log_in(client)
    assert said(rival.read_since(None)) == (0, [], 0, None)

    def amid(call: str) -> None:
        if call == "put_item":
            rival.read_since(0)

    assert log_in(Disturbed(client, amid)).save(b"bulk", after=0, version=1)
    assert not rival.append(b"late", after=0)
    assert said(log_in(client).read_since(None)) == (1, [], 1, b"bulk")


def test_who_reads_while_it_is_replaced_gets_one_version_whole(client: Any) -> None:
    rival, reads = log_in(client), count()
    assert rival.append(b"1", after=0)
    assert rival.save(LARGE, after=1, version=1)

    def amid(call: str) -> None:
        if call == "get_item" and next(reads) in {1, 3}:  # after the head was read, before the parts
            last = rival.read_since(None).version
            assert rival.append(b"more", after=last)
            assert rival.save(b"v" * 2 * PART_BYTES, after=last + 1, version=last + 1)

    assert said(log_in(Disturbed(client, amid)).read_since(None)) == (3, [], 3, b"v" * 2 * PART_BYTES)


def test_a_value_that_never_holds_still_is_an_error_that_may_pass(client: Any) -> None:
    rival, inside = log_in(client), list[str]()
    assert rival.save(b"0", after=0, version=1)

    def amid(call: str) -> None:
        if call == "get_item" and not inside:
            inside.append(call)
            last = rival.read_since(None).version
            assert rival.save(b"again", after=last, version=last + 1)
            inside.clear()

    with pytest.raises(CallFailed, match=f"replaced during each of {MAX_READS} reads"):
        log_in(Disturbed(client, amid)).read_since(None)


def test_logs_of_other_names_are_others(client: Any) -> None:
    assert log_in(client, "one").append(b"1", after=0)
    assert log_in(client, "two").read_since(None).version == 0


# The items themselves, as files: a test that fails here says that what is stored has changed


STORED = Path(__file__).parents[1] / "stored" / "federation"


def stored(name: str) -> Any:
    """An item; bytes are in base64, as on the wire."""
    item = json.loads((STORED / f"{name}.json").read_text())
    return {each: {"B": b64decode(value["B"])} if "B" in value else value for each, value in item.items()}


def put(client: Any, *names: str) -> None:
    for name in names:
        client.put_item(TableName="t", Item=stored(name))


def test_items_are_written_as_they_were(client: Any) -> None:
    tokens = count(1)
    log = DynamoChangeLog(client=client, table="t", name="exchanges", new_token=lambda: f"token-{next(tokens)}")
    for version in range(3):
        assert log.append(b"change", after=version)
        assert log.save(b"snapshot", after=version + 1, version=version + 1)
    assert log.append(b"change", after=3)
    found = {item["sk"]["S"]: item for item in client.scan(TableName="t")["Items"]}
    names = {"head": "bindings_head", "change#000000000004": "bindings_log", "token-6#0": "bindings_part"}
    assert {each: found[each] for each in names} == {each: stored(name) for each, name in names.items()}


def test_items_are_read_as_they_were(client: Any) -> None:
    put(client, "bindings_head", "bindings_log", "bindings_part")
    assert said(log_in(client, "exchanges").read_since(None)) == (4, [b"change"], 3, b"snapshot")
