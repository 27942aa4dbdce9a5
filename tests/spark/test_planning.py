import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import InvalidOffset, SegmentMissing
from sluice_spark.log.planning import (
    Deduplicator,
    Log,
    Offset,
    Position,
    ReadLimit,
    Slice,
    check_consecutive,
    divide_into_tasks,
    find_batch_end,
    find_removable_segments,
)  # fmt: skip
from sluice_spark.log.segments import Header
from sluice_spark.source.receives import compute_connections

SIZES = st.lists(st.integers(0, 30), max_size=12)
LIMIT = st.none() | st.integers(1, 50)


def log_of(sizes: list[int], first: int = 0) -> Log:
    log = Log(first=first)
    for number, messages in enumerate(sizes, first):
        log = log.append(Header(number=number, writer="w", published_ms=0, messages=messages, size=messages * 10))
    return log


def rows(log: Log, start: Position, end: Position) -> list[tuple[int, int]]:
    """The oracle's way to write down what a batch reads: every row by name."""
    return [(e.segment_number, row) for e, low, high in log.list_ranges(start, end) for row in range(low, high)]


@given(SIZES, LIMIT, LIMIT)
def test_batches_in_a_row_read_every_row_once_and_in_order(
    sizes: list[int], messages: int | None, size: int | None
) -> None:
    log, position, read = log_of(sizes), Position(0), []
    for _ in range(sum(sizes) + 1):
        end = find_batch_end(log, position, ReadLimit(messages=messages, size=size))
        batch = rows(log, position, end)
        assert messages is None or len(batch) <= messages
        assert size is None or len(batch) * 10 <= max(size, 10)
        read += batch
        if end == position:
            break
        position = end
    assert read == [(number, row) for number, count in enumerate(sizes) for row in range(count)]


@given(SIZES, LIMIT)
def test_an_offset_counts_what_lies_before_it(sizes: list[int], messages: int | None) -> None:
    log = log_of(sizes)
    end = find_batch_end(log, Position(0), ReadLimit(messages=messages))
    assert log.offset(end).totals.messages == len(rows(log, Position(0), end))
    assert log.drop_before(end).offset(end) == log.offset(end)


@given(SIZES, st.integers(0, 14))
def test_the_newest_segment_is_one_that_a_batch_ends_after_or_lies_before_the_log(sizes: list[int], start: int) -> None:
    log = log_of(sizes).drop_before(Position(min(start, len(sizes))))
    end = find_batch_end(log, Position(log.first), ReadLimit())
    assert log.newest < end.segment
    assert all(extent.messages == 0 for extent in log.extents if extent.segment_number > log.newest)


def test_without_new_rows_the_offset_stays() -> None:
    log = log_of([5, 0, 0])
    assert find_batch_end(log, Position(1), ReadLimit()) == Position(1)
    assert find_batch_end(log, Position(3), ReadLimit()) == Position(3)


@given(SIZES, st.integers(1, 40))
def test_tasks_hold_every_row_once_in_order(sizes: list[int], rows_per_task: int) -> None:
    log = log_of(sizes)
    tasks = divide_into_tasks(log.list_ranges(Position(0), log.end), rows_per_task)
    read = [(part.segment_number, row) for task in tasks for part in task for row in range(part.low, part.high)]
    assert read == rows(log, Position(0), log.end)
    assert all(sum(part.high - part.low for part in task) >= rows_per_task for task in tasks[:-1])


def test_a_task_may_read_several_segments() -> None:
    assert divide_into_tasks(log_of([3, 3]).list_ranges(Position(0), Position(2)), 4) == [
        [Slice(0, 0, 3), Slice(1, 0, 1)],
        [Slice(1, 1, 3)],
    ]


def test_rows_that_the_log_no_longer_has_are_an_error() -> None:
    log = log_of([1, 1], first=5)
    for start, end in itertools.product((Position(4), Position(5)), (Position(7, 1), Position(8))):
        with pytest.raises(SegmentMissing):
            log.list_ranges(start, end)


def test_a_hole_in_the_log_is_an_error() -> None:
    assert check_consecutive([3, 4, 5]) == range(3, 6)
    with pytest.raises(SegmentMissing, match="segment 4"):
        check_consecutive([3, 5])
    with pytest.raises(SegmentMissing):
        log_of([1]).append(Header(number=7, writer="w", published_ms=0))


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 100)), st.integers(0, 20), st.floats(0, 100))
def test_only_old_committed_segments_are_removed_and_never_the_newest(
    published: dict[int, float], committed: int, before: float
) -> None:
    for number in find_removable_segments(published, Position(committed, 3), until_s=before):
        assert number < committed
        assert published[number] < before
        assert number != max(published)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30), st.integers(0, 10))
def test_ids_whose_deletion_is_not_confirmed_are_never_forgotten(segments: list[tuple[int, bool]], limit: int) -> None:
    seen, unconfirmed = Deduplicator(limit), set[str]()
    for number, (count, confirmed) in enumerate(segments):
        ids = [f"{number}-{index}" for index in range(count)]
        seen.add_new(ids)
        seen.add_segment(number, ids)
        if confirmed:
            seen.confirm_deletion(number)
        else:
            unconfirmed.update(ids)
    assert all(identity in seen for identity in unconfirmed)


@given(st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=8))
def test_ids_are_taken_all_or_none(asked: list[list[int]]) -> None:
    seen, known = Deduplicator(), set[str]()
    for ids in (list(map(str, each)) for each in asked):
        new = known.isdisjoint(ids) and len(set(ids)) == len(ids)
        assert seen.add_new(ids) == new
        known |= set(ids) if new else set()
        assert {each for each in map(str, range(9)) if each in seen} == known


def test_what_drivers_before_staged_is_never_forgotten_and_leaves_room_for_as_much_as_ever() -> None:
    seen = Deduplicator(4)
    seen.add_inherited(["a", "b", "c", "d", "e", "f"])
    for number in range(3):
        seen.add_new([f"{number}-0", f"{number}-1"])
        seen.add_segment(number, [f"{number}-0"], [f"{number}-1"])
        seen.confirm_deletion(number)
    assert all(identity in seen for identity in ("a", "f", "1-0", "2-1"))
    assert "0-0" not in seen


def test_connections_follow_the_answers() -> None:
    assert compute_connections(1, 10, 64) > 1
    assert compute_connections(64, 10, 64) == 64
    assert compute_connections(64, 0, 64) == 32
    assert compute_connections(1, 0, 64) == 1


def test_an_offset_survives_the_checkpoint() -> None:
    offset = log_of([4, 4]).offset(Position(1, 2))
    assert Offset.parse(json.loads(json.dumps(offset.json()))) == offset


@pytest.mark.parametrize("wrong", [{}, {"version": 2}, {"version": 1}, {"version": 1, "segment": "x"}])
def test_another_offset_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOffset):
        Offset.parse(wrong)
