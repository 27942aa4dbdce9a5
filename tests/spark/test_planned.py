import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import Fenced, SegmentMissing
from sluice_spark.log.planning import TASKS_LIMIT, Admission, Offset, Position, Totals
from sluice_spark.log.segments import Header
from sluice_spark.source.plan import (
    MESSAGES_PER_TASK,
    ONE_TASK,
    RATE_WINDOW_S,
    TASK_BYTES,
    Budget,
    batch,
    counted,
    holes,
    share,
    tasks_wanted,
)

LIMIT = st.none() | st.integers(1, 5_000_000)
SIZES = st.lists(st.none() | st.integers(0, 30), min_size=1, max_size=12)  # of a range's segments; None: not there


def header(number: int, messages: int, *, planned: bool = True, epoch: int = 0, failed: int = 0) -> Header:
    before = None if planned else 0
    return Header(
        number=number,
        writer="w",
        published_ms=0,
        messages=messages,
        size=messages * 10,
        messages_before=before,
        size_before=before,
        epoch=epoch,
        deletions_failed=failed,
    )


@given(st.integers(0, 10_000_000), st.floats(0, 1_000_000), LIMIT, LIMIT)
def test_shares_of_a_plan_reach_its_limits_and_go_no_further(
    visible: int, mean_size: float, messages: int | None, size: int | None
) -> None:
    admission = Admission(messages=messages, size=size)
    tasks = tasks_wanted(visible, mean_size, admission)
    assert (tasks == 0) == (visible == 0)
    assert tasks <= TASKS_LIMIT
    shares = [share(admission, index, tasks).bounded(ONE_TASK) for index in range(tasks)]
    assert all(1 <= (each.size or 0) <= TASK_BYTES for each in shares)
    taken = sum(each.messages or 0 for each in shares)
    assert messages is None or taken <= messages
    wanted = min(visible, messages or visible)
    assert taken >= wanted or tasks == TASKS_LIMIT
    assert size is None or sum(each.size or 0 for each in shares) <= max(size, tasks)


@pytest.mark.parametrize(
    ("visible", "mean_size", "tasks"),
    [
        (1, 0.0, 1),
        (MESSAGES_PER_TASK, 0.0, 1),
        (MESSAGES_PER_TASK + 1, 0.0, 2),
        (640, TASK_BYTES / 64, 10),  # large messages: tasks by bytes
        (10**9, 0.0, TASKS_LIMIT),
    ],
)
def test_tasks_are_as_many_as_rows_or_bytes_want(visible: int, mean_size: float, tasks: int) -> None:
    assert tasks_wanted(visible, mean_size, Admission()) == tasks


@given(SIZES, st.integers(0, 5), st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, 40))
def test_every_row_and_every_missing_number_is_one_tasks(
    sizes: list[int | None], first: int, planned: list[bool], rows_per_task: int
) -> None:
    found = {
        number: header(number, size, planned=planned[number - first])
        for number, size in enumerate(sizes, first)
        if size is not None
    }
    end = Position(first + len(sizes))
    tasks = batch(found, Position(first), end, epoch=9, rows_per_task=rows_per_task)
    rows = sorted((part.number, row) for task in tasks.staged for part in task for row in range(part.low, part.high))
    assert rows == [(number, row) for number, size in enumerate(sizes, first) for row in range(size or 0)]
    assert list(tasks.missing) == [number for number, size in enumerate(sizes, first) if size is None]


@given(SIZES, st.integers(1, 40))
def test_a_segment_that_tasks_published_is_one_tasks_whoever_asks(sizes: list[int | None], rows_per_task: int) -> None:
    """So that what is written beside its rows has the same name on every run."""
    found = {number: header(number, size) for number, size in enumerate(sizes) if size}
    tasks = batch(found, Position(0), Position(len(sizes)), epoch=0, rows_per_task=rows_per_task)
    assert [[(part.number, part.low, part.high) for part in task] for task in tasks.staged] == [
        [(number, 0, size)] for number, size in enumerate(sizes) if size
    ]


def test_a_range_may_begin_and_end_within_segments() -> None:
    found = {3: header(3, 10, planned=False), 4: header(4, 10, planned=False)}
    tasks = batch(found, Position(3, 7), Position(4, 2), epoch=0, rows_per_task=100)
    assert [(part.number, part.low, part.high) for part in tasks.staged[0]] == [(3, 7, 10), (4, 0, 2)]
    with pytest.raises(SegmentMissing):
        batch({3: found[3]}, Position(3, 7), Position(4, 2), epoch=0, rows_per_task=100)


def test_a_later_drivers_segment_stops_an_earlier_one_and_not_the_other_way() -> None:
    found = {1: header(1, 5, epoch=1)}
    assert batch(found, Position(1), Position(2), epoch=2, rows_per_task=1).staged
    with pytest.raises(Fenced):
        batch(found, Position(1), Position(2), epoch=0, rows_per_task=1)


def test_holes_are_what_is_not_there() -> None:
    assert holes({1, 2, 5, 9}, 1, 8) == [3, 4, 6, 7]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.data())
def test_counting_in_steps_counts_all_at_once(sizes: list[int], data: st.DataObject) -> None:
    headers = [header(number, size) for number, size in enumerate(sizes)]
    end = Position(len(sizes))
    middle = Position(data.draw(st.integers(0, len(sizes))))
    start = Offset(position=Position(0), totals=Totals(messages=7, size=70))
    half = counted(start, middle, headers[: middle.segment], 2)
    assert counted(half, end, headers[middle.segment :], 1) == counted(start, end, headers, 3)
    assert counted(start, end, headers, 3).totals == Totals(messages=7 + sum(sizes), size=70 + 10 * sum(sizes))


def test_what_is_not_counted_yet_must_be_there() -> None:
    with pytest.raises(SegmentMissing):
        counted(Offset(position=Position(3)), Position(5), [header(4, 1)], 0)


def test_a_receivers_failed_deletions_are_cumulative_and_tasks_are_not() -> None:
    start = Offset(position=Position(0), deletions_failed=5)
    headers = [header(0, 1, planned=False, failed=6), header(1, 1, planned=False, failed=8)]
    assert counted(start, Position(2), headers, 3).deletions_failed == 11


def test_an_offset_that_lags_says_how_far_it_counts() -> None:
    offset = Offset(position=Position(9), counted_until=Position(4, 2))
    assert Offset.parse(offset.json()) == offset
    assert offset.counted == Position(4, 2)
    assert "countedUntil" not in Offset(position=Position(9)).json()


def test_a_rate_is_kept_over_batches_and_not_made_up_for_without_end() -> None:
    budget = Budget(lambda: 100)
    assert budget.within(Admission(messages=30), 0.0).messages == 30
    assert budget.within(Admission(), 0.0).messages == 100
    budget.spent(0.0)
    assert budget.within(Admission(size=5), 0.5) == Admission(messages=50, size=5)
    assert budget.within(Admission(), 2 * RATE_WINDOW_S).messages == 100 * RATE_WINDOW_S
    assert Budget().within(Admission(), 1.0) == Admission()
