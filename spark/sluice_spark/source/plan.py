"""What `mode=executors` decides, pure.

How many tasks receive, how much each, and what of a range of segments is there already.

The driver plans numbers of segments that don't exist yet; each number is one task's to receive, stage and publish.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice_spark.errors import Fenced, SegmentMissing
from sluice_spark.log.planning import TASKS_LIMIT, Admission, Extent, Log, Offset, Position, Slice, Totals, sliced
from sluice_spark.log.segments import Header
from sluice_spark.source.rate import Limit

MESSAGES_PER_TASK = 10_000  # that one task receives: more of them receive at once
TASK_BYTES = 16 * 2**20  # bodies that one task receives
ONE_TASK = Admission(messages=MESSAGES_PER_TASK, size=TASK_BYTES)
RATE_WINDOW_S = 60.0  # how much of the time without a batch `rateLimit` makes up for


def tasks_wanted(visible: int, mean_size: float, admission: Admission) -> int:
    """How many tasks receive `visible` messages of `mean_size` bytes, within the batch's limits; 0 for none.

    A size of 0 is not known yet. What is visible beyond TASKS_LIMIT tasks is the next batch's.
    """
    messages = visible if admission.messages is None else min(visible, admission.messages)
    if messages <= 0:
        return 0
    size = messages * mean_size
    if admission.size is not None:
        size = min(size, admission.size)
    return min(TASKS_LIMIT, max(_ceiling(messages, MESSAGES_PER_TASK), _ceiling(size, TASK_BYTES)))


def share(admission: Admission, index: int, count: int) -> Admission:
    """Say what task `index` of `count` may take.

    All together never take more messages than `admission` allows; of those 0 is possible where there are more tasks
    than messages. Bytes are divided softly: each task may take one.
    """
    messages, size = admission.messages, admission.size
    return Admission(
        messages=None if messages is None else messages // count + (index < messages % count),
        size=None if size is None else max(1, size // count),
    )


@dataclass(slots=True)
class Budget:
    """`rateLimit`, in messages/s: what the next batch may take, by the time since the one before.

    Times are monotonic.
    """

    limit: Limit | None = None
    _at: float | None = None

    def within(self, admission: Admission, now: float) -> Admission:
        """Bound the admission: no more messages than have become due."""
        per_second = self.limit() if self.limit is not None else None
        if per_second is None:
            return admission
        elapsed = 1.0 if self._at is None else min(RATE_WINDOW_S, now - self._at)
        due = int(per_second * elapsed)
        return admission.bounded(Admission(messages=due))

    def spent(self, now: float) -> None:
        """Note that a batch was planned."""
        self._at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A range of positions, as tasks: of what is staged, and numbers that are to be received."""

    staged: Sequence[Sequence[Slice]] = ()
    missing: Sequence[int] = ()


def batch(
    found: Mapping[int, Header], start: Position, end: Position, *, epoch: int, rows_per_task: int
) -> PlannedBatch:
    """`found`: those of the range's segments that exist.

    A segment that a task published is one task's again, whoever asks and whenever, so that what tasks write beside the
    rows has the same name; others are packed.

    Raises Fenced if a newer driver has written in the range, SegmentMissing if the range ends within a segment that
    isn't there.
    """
    last = end.segment + bool(end.row)
    numbers = range(start.segment, last)
    for number in numbers:
        accepted(found.get(number), epoch)
    partial = {each.segment for each in (start, end) if each.row}
    if absent := sorted(partial - set(found)):
        raise SegmentMissing(f"segment {absent[0]}, of which the offset names a row, is missing")
    parts = [_part(found[number], start, end) for number in numbers if number in found]
    whole = [[Slice(each.number, low, high)] for each, low, high in parts if found[each.number].planned and low < high]
    packed = sliced([part for part in parts if not found[part[0].number].planned and part[1] < part[2]], rows_per_task)
    return PlannedBatch(staged=[*packed, *whole], missing=[number for number in numbers if number not in found])


def accepted(header: Header | None, epoch: int) -> None:
    """Accept a segment of this driver or an earlier one as part of the log that this one reads.

    Raises Fenced of a later.
    """
    if header is not None and header.epoch > epoch:
        raise Fenced(f"segment {header.number} was published for a newer driver: it claimed the log at {header.epoch}")


def holes(numbers: Collection[int], low: int, high: int) -> Sequence[int]:
    """Numbers from `low` to before `high` that aren't there."""
    return [number for number in range(low, high) if number not in numbers]


def counted(offset: Offset, until: Position, headers: Iterable[Header], failed: int) -> Offset:
    """Count what lies before `until`, as an offset there.

    `headers`: of all segments in between, in order; `failed`: deletions that failed there, of those that tasks
    published. Raises SegmentMissing.
    """
    first = offset.counted
    known = list(headers)
    if known and known[0].number != first.segment:
        raise SegmentMissing(f"segment {first.segment} is missing, whose messages are not counted yet")
    extents = tuple(Extent(header.number, header.messages, header.size) for header in known)
    parts = Log(first=first.segment, extents=extents).between(first, until)
    totals = Totals(
        messages=offset.totals.messages + sum(high - low for _, low, high in parts),
        size=offset.totals.size + sum(each.size * (high - low) // each.messages for each, low, high in parts),
    )
    cumulative = max((header.deletions_failed for header in known), default=0)
    return Offset(
        position=until,
        totals=totals,
        deletions_failed=max(offset.deletions_failed, cumulative) + failed,
        errors=offset.errors,
        errors_until=offset.errors_until,
    )


def _part(header: Header, start: Position, end: Position) -> tuple[Extent, int, int]:
    low = start.row if header.number == start.segment else 0
    high = end.row if header.number == end.segment else header.messages
    return Extent(header.number, header.messages, header.size), low, high


def _ceiling(size: float, part: int) -> int:
    return int(-(-size // part))
