"""Positions in the staged log, the offsets in Spark's checkpoint that name them, and decisions about the log. Pure.

The decisions are a batch's end, its tasks, which segments are removable, and which messages are duplicates. An offset
names a position, with counts of the rows before the position. Offsets contain no options, so a query can restart with
other options. The counts depend only on the position, because Spark takes an offset with a different text for new data.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice_spark.errors import InvalidOffset, SegmentMissing
from sluice_spark.log.segments import Header

VERSION = 1  # version of the offset format
# About the rows of a segment: every task decompresses all of a segment, so fewer rows would waste CPU.
ROWS_PER_TASK = 20_000
TASKS_LIMIT = 200
DEDUPLICATION_LIMIT = 250_000  # maximum number of remembered ids of deleted messages, which SQS rarely redelivers


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position before row `row` of segment `segment`. A segment's end is the next segment's beginning."""

    segment: int
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Cumulative counts of messages and bytes since the log began, which restarts don't reset."""

    messages: int = 0
    size: int = 0  # bytes of all bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position, with counts of the rows before it. JSON has the metric names of FLIP-477 and FLIP-33."""

    position: Position
    totals: Totals = field(default_factory=Totals)
    deletions_failed: int = 0
    errors: int = 0  # number of bad records before `errors_counted_to`
    errors_counted_to: Position = Position(0)

    def json(self) -> dict[str, Any]:
        """Return the offset as the JSON object that Spark stores."""
        return {
            "version": VERSION,
            "segment": self.position.segment,
            "row": self.position.row,
            "numRecordsIn": self.totals.messages,
            "numBytesIn": self.totals.size,
            "numSqsDeletionsFailed": self.deletions_failed,
            "numRecordsInErrors": self.errors,
            "errorsUntil": [self.errors_counted_to.segment, self.errors_counted_to.row],
        }

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> "Offset":
        """Parse an offset. Raises InvalidOffset for malformed offsets and for later versions."""
        if offset.get("version") != VERSION:
            raise InvalidOffset(f"offset of version {offset.get('version')!r}, this package reads {VERSION}: {offset}")
        try:
            names = ("segment", "row", "numRecordsIn", "numBytesIn", "numSqsDeletionsFailed", "numRecordsInErrors")
            segment, row, messages, size, failed, errors = (int(offset[name]) for name in names)
            errors_counted_to = Position(*(int(number) for number in offset["errorsUntil"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidOffset(f"malformed offset: {offset}") from error
        if segment < 0 or row < 0:
            raise InvalidOffset(f"negative position: {offset}")
        position, totals = Position(segment, row), Totals(messages=messages, size=size)
        counts = {"deletions_failed": failed, "errors": errors}
        return cls(position=position, totals=totals, **counts, errors_counted_to=errors_counted_to)


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """A segment's number and size, for planning."""

    segment_number: int
    messages: int
    size_bytes: int
    deletions_failed: int = 0  # failed deletions in total when the segment was published


@dataclass(frozen=True, slots=True)
class Log:
    """Consecutive segments from number `first` on, and the totals of earlier segments."""

    first: int = 0
    totals_before: Totals = field(default_factory=Totals)
    extents: tuple[SegmentExtent, ...] = ()
    deletions_failed_before: int = 0

    @property
    def next_number(self) -> int:
        """The number of the next segment."""
        return self.first + len(self.extents)

    @property
    def newest(self) -> int:
        """The number of the newest segment with rows, where a batch can end; without such a segment, `first` - 1."""
        return next((extent.segment_number for extent in reversed(self.extents) if extent.messages), self.first - 1)

    @property
    def end(self) -> Position:
        """The position after the log's last row."""
        return Position(self.next_number)

    def append(self, header: Header) -> "Log":
        """Return the log with one more segment. Raises SegmentMissing if the segment isn't the next one."""
        if header.number != self.next_number:
            raise SegmentMissing(f"segment {header.number} follows {self.next_number - 1}: the log has a gap")
        extent = SegmentExtent(header.number, header.messages, header.size, header.deletions_failed)
        return replace(self, extents=(*self.extents, extent))

    def drop_before(self, position: Position) -> "Log":
        """Return the log without the segments that lie wholly before the position."""
        gone = max(0, min(position.segment - self.first, len(self.extents)))
        before = Totals(
            messages=self.totals_before.messages + sum(extent.messages for extent in self.extents[:gone]),
            size=self.totals_before.size + sum(extent.size_bytes for extent in self.extents[:gone]),
        )
        failed = self.extents[gone - 1].deletions_failed if gone else self.deletions_failed_before
        return Log(self.first + gone, before, self.extents[gone:], failed)

    def list_ranges(self, start: Position, end: Position) -> Sequence[tuple[SegmentExtent, int, int]]:
        """List each segment between the positions with its range of rows [from, to), without empty ranges.

        Raises SegmentMissing if the log doesn't have all rows: rows are never skipped silently.
        """
        if start == end:
            return ()
        if start.segment < self.first or end > self.end:
            raise SegmentMissing(
                f"rows from {start} to {end} asked for, the log has {self.first} to {self.next_number}"
            )
        rows = []
        for extent in self.extents[start.segment - self.first : end.segment - self.first + 1]:
            low = start.row if extent.segment_number == start.segment else 0
            high = end.row if extent.segment_number == end.segment else extent.messages
            if low < high:
                rows.append((extent, low, high))
        return rows

    def offset(self, position: Position) -> Offset:
        """Return the offset of the position, with its totals."""
        index = position.segment - self.first
        whole = self.extents[:index]
        messages = self.totals_before.messages + sum(extent.messages for extent in whole) + position.row
        size = self.totals_before.size + sum(extent.size_bytes for extent in whole)
        if position.row:
            size += self.extents[index].size_bytes * position.row // self.extents[index].messages
        failed = whole[-1].deletions_failed if whole else self.deletions_failed_before
        return Offset(position=position, totals=Totals(messages=messages, size=size), deletions_failed=failed)

    def count_backlog(self, start: Position) -> Totals:
        """Count the messages and bytes after the position."""
        parts = self.list_ranges(max(start, Position(self.first)), self.end)
        return Totals(
            messages=sum(high - low for _, low, high in parts),
            size=sum(extent.size_bytes * (high - low) // extent.messages for extent, low, high in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimit:
    """Limits of a micro-batch: number of messages, and bytes of all bodies. None means no limit."""

    messages: int | None = None
    size: int | None = None

    def combine(self, other: "ReadLimit") -> "ReadLimit":
        """Return the stricter limit of each kind."""
        messages = [limit.messages for limit in (self, other) if limit.messages is not None]
        sizes = [limit.size for limit in (self, other) if limit.size is not None]
        return ReadLimit(messages=min(messages, default=None), size=min(sizes, default=None))


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [low, high) of a segment, for one task to read."""

    segment_number: int
    low: int
    high: int


def find_batch_end(log: Log, start: Position, limit: ReadLimit) -> Position:
    """Find the end of a batch from `start` on, within the limits. A batch has at least one row, if the log has one.

    Each row counts as its segment's average number of bytes; Spark's own byte limits are approximate too.
    """
    messages_left, size_left, position = limit.messages, limit.size, start
    for extent, low, high in log.list_ranges(start, log.end):
        take = high - low
        if messages_left is not None:
            take = min(take, messages_left)
        if size_left is not None and extent.size_bytes:
            take = min(take, size_left * extent.messages // extent.size_bytes)
        if position == start and not take:
            take = 1
        if low + take < extent.messages:
            return Position(extent.segment_number, low + take) if take else position
        position = Position(extent.segment_number + 1)
        messages_left = None if messages_left is None else messages_left - take
        size_left = None if size_left is None else size_left - extent.size_bytes * take // extent.messages
        if messages_left == 0 or (size_left is not None and size_left <= 0):
            return position
    return log.end if position != start else start  # A batch of only empty segments isn't planned.


def divide_into_tasks(
    parts: Iterable[tuple[SegmentExtent, int, int]], rows_per_task: int = ROWS_PER_TASK
) -> Sequence[Sequence[Slice]]:
    """Divide rows, in order, into at most TASKS_LIMIT tasks of at least `rows_per_task` rows (the last: any number)."""
    slices = [Slice(extent.segment_number, low, high) for extent, low, high in parts]
    total = sum(part.high - part.low for part in slices)
    task_rows = max(rows_per_task, -(-total // TASKS_LIMIT))
    tasks: list[list[Slice]] = []
    room = 0
    for part in slices:
        low = part.low
        while low < part.high:
            if not room:
                tasks.append([])
                room = task_rows
            high = min(part.high, low + room)
            tasks[-1].append(Slice(part.segment_number, low, high))
            room -= high - low
            low = high
    return tasks


def check_consecutive(numbers: Collection[int]) -> range:
    """Check that the retained segments' numbers are consecutive.

    Raises SegmentMissing for a gap: segments were lost, or belong to another log.
    """
    if not numbers:
        return range(0)
    consecutive = range(min(numbers), max(numbers) + 1)
    if len(numbers) != len(consecutive):
        missing = next(number for number in consecutive if number not in set(numbers))
        raise SegmentMissing(f"segment {missing} is missing between {consecutive.start} and {consecutive.stop - 1}")
    return consecutive


def find_removable_segments(published: Mapping[int, float], committed: Position, *, until_s: float) -> Sequence[int]:
    """List the segments that were published before the time and that no batch needs any more, lowest number first.

    The newest segment always stays, because its header has the totals.
    """
    newest = max(published, default=0)
    return sorted(
        number for number, at in published.items() if number < min(committed.segment, newest) and at < until_s
    )


class Deduplicator:
    """Remembers the ids of staged messages, by segment, and forgets the oldest first.

    Ids of a segment whose deletions aren't confirmed are never forgotten, because its messages will be redelivered. Ids
    inherited from earlier drivers aren't forgotten either.
    """

    def __init__(self, limit: int = DEDUPLICATION_LIMIT) -> None:
        self._limit, self._ids = limit, set[str]()
        self._segments: deque[tuple[int, Sequence[Sequence[str]]]] = deque()
        self._unconfirmed: set[int] = set()

    def __contains__(self, identity: str) -> bool:
        return identity in self._ids

    def add_inherited(self, ids: Sequence[str]) -> None:
        """Remember ids that earlier drivers staged, for this driver's lifetime: SQS may still have these messages.

        The limit grows by the number of these ids, so as many of this driver's own ids are kept as before.
        """
        before = len(self._ids)
        self._ids.update(ids)
        self._limit += len(self._ids) - before

    def add_new(self, ids: Sequence[str]) -> bool:
        """Remember ids of messages that are about to be staged. The caller must stage the messages or stop.

        If any id is known or repeated, no id is remembered, and the result is False.
        """
        if not self._ids.isdisjoint(ids):
            return False
        before = len(self._ids)
        self._ids.update(ids)
        if len(self._ids) - before == len(ids):
            return True
        self._ids.difference_update(ids)
        return False

    def add_segment(self, number: int, *taken: Sequence[str]) -> None:
        """Record that messages with these ids are durable in segment `number`, but not yet deleted from the queue."""
        self._segments.append((number, taken))
        self._unconfirmed.add(number)
        self._forget()

    def confirm_deletion(self, number: int) -> None:
        """Record that SQS has deleted all messages of the segment."""
        self._unconfirmed.discard(number)
        self._forget()

    def _forget(self) -> None:
        while len(self._ids) > self._limit and self._segments and self._segments[0][0] not in self._unconfirmed:
            self._ids.difference_update(*self._segments.popleft()[1])
