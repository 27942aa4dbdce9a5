"""The staged log in its store: recovery, takeover, append, read, retention.

`planning` makes the decisions.

A writer first publishes an empty segment as its claim: from then on an earlier writer finds its next number taken, and
stops. The newest driver wins, so that a driver restarted after the loss of a host isn't blocked by its dying
predecessor.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from sluice_spark.errors import Fenced, SegmentMissing, SegmentTaken
from sluice_spark.log import segments
from sluice_spark.log.notifications import NotificationDeduplicator
from sluice_spark.log.planning import (
    DEDUPLICATION_LIMIT,
    Deduplicator,
    Log,
    Position,
    Slice,
    Totals,
    check_consecutive,
    find_removable_segments,
)
from sluice_spark.log.store import Store
from sluice_spark.sqs.received import Message, Received, split_messages

log = logging.getLogger(__name__)

CLAIM_ATTEMPTS = 20
# Ids of this many earlier drivers are remembered, besides the newest DEDUPLICATION_LIMIT ids.
DRIVERS_REMEMBERED = 8
LAST_OF_A_DRIVER = 50_000  # number of remembered ids per driver, more than a driver's undeleted messages
FIRST = segments.Header(number=0, writer="", published_ms=0)


class StagedLog:
    """A writer's view of the log. `log` is replaced as a whole, so that other threads can read the log."""

    def __init__(self, store: Store, notified: NotificationDeduplicator | None = None) -> None:
        """Create a view. `notified` deduplicates S3 event records, if the messages are S3 notifications."""
        self.store, self.notified, self._writer = store, notified, uuid.uuid4().hex
        self._next = FIRST  # The header for the next segment
        self._epoch: int | None = None
        self._changing = threading.Lock()  # One thread appends, another drops segments.
        self.log = Log()
        self.deduplicator = Deduplicator()

    def find_oldest_position(self) -> Position:
        """Return where a new query begins: at the oldest segment, so that the query gets all uncommitted messages."""
        return Position(self._list_segment_numbers().start)

    def take_over(self, start: Position) -> None:
        """Claim the log, and read the log from `start` on. Raises Fenced if other writers keep claiming the log."""
        for _ in range(CLAIM_ATTEMPTS):
            segment_numbers = self._list_segment_numbers()
            if start.segment > segment_numbers.stop or (start.row and start.segment == segment_numbers.stop):
                raise SegmentMissing(
                    f"the offset names segment {start.segment}, the log ends before {segment_numbers.stop}"
                )
            self._load(segment_numbers, start)
            self._remember(segment_numbers)
            self._epoch = None
            try:
                self.append(segments.EMPTY)
            except Fenced:
                continue
            return
        raise Fenced("other drivers keep claiming this staging location")

    def read_log(self, start: Position | None = None) -> Log:
        """Read the current log from `start`, or from its oldest segment, without a claim. Raises SegmentMissing."""
        segment_numbers = self._list_segment_numbers()
        self._load(segment_numbers, start or Position(segment_numbers.start))
        return self.log

    def end(self) -> Position:
        """Return the position after the newest segment."""
        return Position(self._list_segment_numbers().stop)

    def append(self, rows: pa.Table, *, deletions_failed: int = 0) -> segments.Header:
        """Publish rows as the next segment. Raises Fenced if another writer has taken the segment's number."""
        if self._epoch is None:
            self._epoch = self._next.number
        header = replace(
            self._next,
            epoch=self._epoch,
            writer=self._writer,
            published_ms=int(time.time() * 1000),
            messages=rows.num_rows,
            size=segments.sum_body_bytes(rows),
            deletions_failed=self._next.deletions_failed + deletions_failed,
        )
        try:
            segments.publish(self.store, header, rows)
        except SegmentTaken as error:
            raise Fenced(f"segment {header.number} was published by another driver") from error
        with self._changing:
            self.log = self.log.append(header)
        self._next = header.next_header()
        return header

    def check_newest(self) -> None:
        """Raise SegmentMissing if the newest segment is gone, because the next segment would leave a gap."""
        segments.read_header(self.store, self._next.number - 1)

    def split_new(self, received: Sequence[Received]) -> tuple[Sequence[Received], Sequence[Received], Sequence[str]]:
        """Split messages: returns the new messages, the known messages, and the new messages' ids.

        SQS redelivers messages whose deletion failed. Each record of S3's notifications is staged once. The new ids are
        remembered, so the caller must stage the new messages or stop.
        """
        ids = _list_message_ids(received)
        if self.notified is None and self.deduplicator.add_new(ids):  # the usual case: no message is known
            return received, (), ids
        batch_ids = set[str]()

        def keep_new(message: Message) -> Message | None:
            is_known = message.message_id in self.deduplicator or message.message_id in batch_ids
            batch_ids.add(message.message_id)
            return None if is_known else message

        fresh, again = split_messages(received, keep_new)
        if self.notified is not None:
            fresh, known = self.notified.split_new_messages(fresh)
            again += known
        ids = _list_message_ids(fresh)
        self.deduplicator.add_new(ids)
        return fresh, again, ids

    def forget_before(self, position: Position) -> None:
        """Drop the segments before a committed position from memory, not from the store."""
        with self._changing:
            self.log = self.log.drop_before(position)

    def remove_old_segments(self, committed: Position, retention_s: float) -> int:
        """Remove committed segments older than the retention, and return their number."""
        segment_numbers = find_removable_segments(
            segments.list_segments(self.store), committed, until_s=time.time() - retention_s
        )
        self.store.remove([segments.segment_name(number) for number in segment_numbers])
        return len(segment_numbers)

    def _list_segment_numbers(self) -> range:
        """Return the range of the retained segments' numbers. Raises SegmentMissing for a gap."""
        return check_consecutive(segments.list_segments(self.store))

    def _load(self, segment_numbers: range, start: Position) -> None:
        self.log, self.deduplicator, self._next = Log(first=start.segment), Deduplicator(), FIRST
        if not segment_numbers:
            return
        if start.segment < segment_numbers.start:
            raise SegmentMissing(f"the offset names segment {start.segment}, the log begins at {segment_numbers.start}")
        # The header of the segment before `start` has the totals of messages, bytes and failed deletions up to `start`.
        needed = range(max(segment_numbers.start, start.segment - 1), segment_numbers.stop)
        headers = segments.read_headers(self.store, needed)
        totals = Totals(messages=headers[0].messages_before, size=headers[0].size_before)
        whole = Log(first=needed.start, totals_before=totals)
        for header in headers:
            whole = whole.append(header)
        self.log = whole.drop_before(start)
        self._next = headers[-1].next_header()

    def _remember(self, segment_numbers: range) -> None:
        """Remember ids of messages that SQS might redeliver: the newest ids, and the last ids of earlier drivers."""
        newest: list[tuple[int, Sequence[str]]] = []
        record_ids: list[Sequence[bytes | None]] = []
        count = 0
        for number in reversed(segment_numbers):
            content = self.store.read(segments.segment_name(number))
            ids = segments.read_message_ids(content)
            newest.append((number, ids))
            if self.notified is not None:
                record_ids.append(self.notified.list_identities(segments.read_rows(content).column("body").to_pylist()))
            count += len(ids)
            if count >= DEDUPLICATION_LIMIT:
                break
        for _, ids in newest:
            self.deduplicator.add_inherited(ids)
        for ids in self._last_ids_by_driver(
            range(segment_numbers.start, newest[-1][0] if newest else segment_numbers.start)
        ):
            self.deduplicator.add_inherited(ids)
        if self.notified is not None:
            self.notified.restore(record_id for segment in reversed(record_ids) for record_id in segment)

    def _last_ids_by_driver(self, segment_numbers: range) -> Iterator[Sequence[str]]:
        """Yield the last ids of each of the latest drivers in these segments.

        A killed driver's undeleted messages are redelivered after the visibility timeout. Before that, later drivers
        can have staged any number of messages, and can have been killed too.
        """
        for _ in range(DRIVERS_REMEMBERED):
            if not segment_numbers:
                return
            first = max(segments.read_header(self.store, segment_numbers[-1]).epoch, segment_numbers.start)
            count = 0
            for number in reversed(range(first, segment_numbers.stop)):
                ids = segments.read_message_ids(self.store.read(segments.segment_name(number)))
                yield ids
                count += len(ids)
                if count >= LAST_OF_A_DRIVER:
                    break
            segment_numbers = range(segment_numbers.start, first)


def read_slices(store: Store, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices in order, the same rows at every call. Raises SegmentMissing."""
    for part in slices:
        yield from segments.read_batches(store.read(segments.segment_name(part.segment_number)), part.low, part.high)


def _list_message_ids(received: Iterable[Received]) -> list[str]:
    return [message.message_id for answer in received for message in answer.messages]
