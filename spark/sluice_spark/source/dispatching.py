"""The driver's side of `mode=executors`.

Claims the log, plans numbers of segments for tasks to receive, counts what they received. What is decided is decided in
plan; nothing is received here.

As in `mode=driver` a driver claims the log with an empty segment. Its number orders the drivers: tasks stop at a
segment of a later one, and take one of an earlier as part of the log. So a range that an earlier driver planned, and
whose tasks may still be at it, is replayed by the next whoever publishes first, and what earlier tasks publish beyond
it is read by later batches.
"""

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice_spark.errors import Fenced, SegmentMissing, SegmentTaken
from sluice_spark.log import segments
from sluice_spark.log.notes import notes
from sluice_spark.log.planning import (
    DEDUPLICATION_LIMIT,
    Admission,
    Log,
    Offset,
    Position,
    Slice,
    Totals,
    admitted,
    removable,
)
from sluice_spark.log.staging import CLAIM_ATTEMPTS
from sluice_spark.log.store import Store
from sluice_spark.source import plan
from sluice_spark.source.chains import ENDED, Chain, chains
from sluice_spark.source.depth import Depth
from sluice_spark.source.executors import DELETIONS, Order, deletions, message_ids
from sluice_spark.source.rate import Limit

log = logging.getLogger(__name__)

SEEN = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """A batch's: rows that are staged, and segments to receive."""

    staged: Sequence[Sequence[Slice]]
    orders: Sequence[Order]


class Dispatcher:
    """One driver's. `start`: where Spark has read to, or where the batch begins that it is about to run again."""

    def __init__(
        self, store: Store, depth: Depth, start: Position, *, rate_limit: Limit | None = None, ending: bool = False
    ) -> None:
        """Claims the log. Raises SegmentMissing if it doesn't reach to `start`, Fenced if others keep claiming it.

        `ending`: plans no more messages, all in all, than the queues hold when it is first asked.
        """
        self._store, self._depth, self._name = store, depth, uuid.uuid4().hex
        self._budget = plan.Budget(rate_limit)
        self._admissions: dict[int, Admission] = {}  # of the plan that ends with the number
        self._ending = ending
        self._enough: int | None = None  # a total of messages, where a run ends
        self._at: Offset | None = None  # where we counted last
        self._unconfirmed: list[int] = []
        self._mean_size = 0.0
        self._staged: Log | None = None  # what was there when we came, once we know where that begins
        self._planning = threading.Lock()  # Spark's thread plans, another removes old segments
        numbers = self._claimed(start)
        self._known = frozenset(numbers)
        seen = self._remembered(numbers)
        self._order = Order(number=0, epoch=self.epoch, driver=self._name, since=0, witness=0, seen=seen)
        self._next = self.epoch + 1

    def planned(self, given: Offset, admission: Admission) -> Offset | None:
        """Where the batch that begins at `given` ends; None if there is nothing to read. Never waits for a message.

        What lies before `given` is committed: all of its segments exist.
        """
        position = given.position
        if self._at is None or self._at.position != position:
            self._at = self._counted(given)
        staged = self._adopted(position)
        if staged is not None and staged.backlog(position).messages:
            end = admitted(staged, position, admission)
        elif (tasks := self._wanted(self._at, admission)) > 0:
            end = Position(self._next + tasks)
            self._next = end.segment
        else:
            return None
        return replace(self._at, position=end, counted_until=position)

    def tasks(
        self, start: Position, end: Position, admission: Admission, rows_per_task: int = plan.MESSAGES_PER_TASK
    ) -> Tasks:
        """Plan the batch's tasks, the first time or again.

        `admission`: if the plan is an earlier driver's. Raises SegmentMissing, Fenced.
        """
        if start == end:
            return Tasks(staged=(), orders=())
        last = end.segment + bool(end.row)
        numbers = segments.numbers_since(self._store, max(0, start.segment - 1))
        wanted = [number for number in numbers if start.segment <= number < last]
        found = {header.number: header for header in segments.headers_at(self._store, wanted)}
        parts = plan.batch(found, start, end, epoch=self.epoch, rows_per_task=rows_per_task)
        self._check_never_there(parts.missing)
        limits = self._admissions.get(end.segment, admission)
        count, before = len(parts.missing) + len(parts.staged), start.segment - 1
        with self._planning:
            unconfirmed = tuple(self._unconfirmed)
        orders = [
            replace(
                self._order,
                number=number,
                since=start.segment,
                witness=before if before in numbers else start.segment,
                unconfirmed=unconfirmed,
                admission=plan.share(limits, index, count).bounded(plan.ONE_TASK),
                mean_size=self._mean_size,
            )
            for index, number in enumerate(parts.missing)
        ]
        return Tasks(staged=parts.staged, orders=orders)

    def chains(self, admission: Admission) -> Sequence[Chain]:
        """Plan a bounded read's tasks, at least one: what is visible now says how many, not how much they take.

        What earlier drivers planned and nobody follows any more is closed, so that the log can be read. Raises what
        asking for the queues' depth raises.
        """
        self._close(min(self._known, default=self.epoch))
        count = max(1, plan.tasks_wanted(self._depth.visible(Position(self._next)), 0.0, admission))
        first = replace(self._order, number=self._next, since=self._next, witness=self.epoch)
        return chains(first, count, admission)

    def retain(self, offset: Offset, retention_s: float, *, going: segments.Going = lambda _: None) -> int:
        """Remove segments, with what is noted of them, that are committed, counted, and older; return how many.

        One more than must be stays, so that a batch that begins at `offset` finds what comes before it. `going` has
        their numbers first.
        """
        before = time.time() - retention_s
        published = segments.published_at(self._store)
        floor = Position(max(0, min(offset.counted.segment, offset.position.segment) - 1))
        numbers = removable(published, floor, before=before)
        going(numbers)
        self._store.remove([segments.segment_name(number) for number in numbers])
        lowest = min(set(published) - set(numbers), default=0)
        found = [*notes(self._store, DELETIONS), *notes(self._store, ENDED)]
        noted = [each.name for each in found if each.numbers[0] < lowest]
        seen = [name for name, at in self._store.names(SEEN).items() if at < before and name != self._order.seen]
        self._store.remove([*noted, *seen])
        with self._planning:
            self._unconfirmed = [number for number in self._unconfirmed if number >= lowest]
        return len(numbers)

    def pending(self, end: Offset) -> Offset:
        """Count as read what the queues hold, as last asked: how far behind the query is."""
        messages = end.totals.messages + self._depth.last
        return replace(end, totals=Totals(messages=messages, size=end.totals.size))

    def _wanted(self, at: Offset, admission: Admission) -> int:
        """How many tasks the next batch has, whose limits are noted; 0 for none."""
        visible = self._depth.visible(at.position)
        if self._ending and self._enough is None:
            self._enough = at.totals.messages + visible
        if self._enough is not None:
            visible = min(visible, self._enough - at.totals.messages)
            admission = admission.bounded(Admission(messages=visible))
        now = time.monotonic()
        admission = self._budget.within(admission, now)
        tasks = plan.tasks_wanted(visible, self._mean_size, admission)
        if tasks:
            self._budget.spent(now)
            self._admissions = {self._next + tasks: admission}
        return tasks

    def _claimed(self, start: Position) -> Sequence[int]:
        """Publish our empty segment, after the newest; return the numbers that were there before."""
        for _ in range(CLAIM_ATTEMPTS):
            numbers = sorted(segments.numbers_since(self._store))
            if numbers and start.segment < numbers[0]:
                raise SegmentMissing(f"the offset names segment {start.segment}, the log begins at {numbers[0]}")
            if start.segment > (numbers[-1] + 1 if numbers else 0):
                raise SegmentMissing(f"the offset names segment {start.segment}, the log ends before it")
            self.epoch = numbers[-1] + 1 if numbers else 0
            if self._filled(self.epoch):
                return numbers
        raise Fenced("other drivers keep claiming this staging location")

    def _filled(self, number: int) -> bool:
        """Publish an empty segment; False if another is there."""
        try:
            segments.publish(
                self._store, segments.planned_header(number, self.epoch, segments.EMPTY, self._name), segments.EMPTY
            )
        except SegmentTaken:
            return False
        return True

    def _remembered(self, numbers: Sequence[int]) -> str | None:
        """Write the ids whose deletion isn't confirmed to an object of their own, so that no task has to read all.

        A receiver in the driver confirms nothing for others to see: of its segments the newest are remembered.
        """
        if not numbers:
            return None
        noted = deletions(self._store, numbers[0])
        rows: list[pa.Table] = []
        count = 0
        for number in (number for number in reversed(numbers) if noted.get(number) != 0):
            header = segments.header_at(self._store, number)
            if header.messages:
                ids = message_ids(self._store, segments.segment_name(number))
                rows.append(segments.table_with({"message_id": ids}))
            count += 0 if header.planned else header.messages
            if count >= DEDUPLICATION_LIMIT:
                break
        if not rows:
            return None
        name = f"{SEEN}/{self.epoch:020d}-{self._name}.arrow"
        header = segments.Header(
            number=self.epoch, writer=self._name, published_ms=int(time.time() * 1000), epoch=self.epoch
        )
        self._store.publish(name, segments.encoded(pa.concat_tables(rows), header))
        return name

    def _adopted(self, position: Position) -> Log | None:
        """Read what is left of the log that we found; None once Spark has read it.

        At the first call everything before `position` is committed, so gaps between there and our claim are an earlier
        driver's plan that nobody follows any more: they are closed, or its tasks would publish there unread.
        """
        if position.segment > self.epoch:
            self._next = max(self._next, position.segment)
            self._staged = None
            return None
        if self._staged is None:
            self._close(position.segment)
            numbers = range(position.segment, self.epoch + 1)
            whole = Log(first=position.segment)
            for header in segments.headers_at(self._store, numbers):
                whole = whole.appended(header)
            self._staged = whole
        return self._staged

    def _close(self, low: int) -> None:
        """Fill what is missing between `low` and our claim."""
        closed = plan.holes(segments.numbers_since(self._store, low), low, self.epoch)
        self._check_never_there(closed)
        for number in closed:
            self._filled(number)

    def _check_never_there(self, numbers: Sequence[int]) -> None:
        """Check for a segment that was deleted by hand: what is noted of it is there. Raises SegmentMissing."""
        noted = deletions(self._store, numbers[0]) if numbers else {}
        if gone := [number for number in numbers if number in noted]:
            raise SegmentMissing(f"segment {gone[0]} was published, and is gone")

    def _counted(self, given: Offset) -> Offset:
        """Count all that lies before the offset, and note what its tasks left in the queue."""
        start, end = given.counted, given.position
        if start == end:
            return given
        headers = segments.headers_at(self._store, range(start.segment, end.segment + bool(end.row)))
        noted = deletions(self._store, start.segment)
        whole = range(start.segment, end.segment)
        unconfirmed = [h.number for h in headers if h.messages and noted.get(h.number) != 0 and h.number in whole]
        with self._planning:
            self._unconfirmed += [number for number in unconfirmed if number not in self._known]
        found = plan.counted(given, end, headers, sum(failed for number, failed in noted.items() if number in whole))
        messages = found.totals.messages - given.totals.messages
        if messages:
            self._mean_size = (found.totals.size - given.totals.size) / messages
        return found


def adopted(store: Store) -> Position:
    """Where a new query begins: at the oldest segment that is there."""
    return Position(min(segments.numbers_since(store), default=0))


def reached(store: Store, offset: Mapping[str, object]) -> Offset:
    """Read a committed batch's offset, with its totals counted to its end. Raises InvalidOffset, SegmentMissing."""
    given = Offset.parse(offset)
    start, end = given.counted, given.position
    return plan.counted(given, end, segments.headers_at(store, range(start.segment, end.segment + bool(end.row))), 0)
