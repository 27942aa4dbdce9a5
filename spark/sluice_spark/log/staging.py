"""The staged log in its store: recovery, takeover, append, read, retention.

What is decided there is decided in planning.

Whoever writes the log first publishes an empty segment, its claim: from then on an earlier writer finds its next
number taken, and stops. The
newest driver wins, so that one restarted after a lost host isn't kept out by the one that is still dying.
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
from sluice_spark.log.notified import Notified
from sluice_spark.log.planning import (
    DEDUPLICATION_LIMIT,
    Log,
    Position,
    Seen,
    Slice,
    Totals,
    checked_numbers,
    removable,
)
from sluice_spark.log.store import Store
from sluice_spark.sqs.received import Message, Received, divided

log = logging.getLogger(__name__)

CLAIM_ATTEMPTS = 20
DRIVERS_REMEMBERED = 8  # before those that staged the newest DEDUPLICATION_LIMIT messages
LAST_OF_A_DRIVER = 50_000  # ids: several times what is staged and not yet deleted at any moment
FIRST = segments.Header(number=0, writer="", published_ms=0)


class StagedLog:
    """One writer's view of the log. `log` is replaced as a whole, so that other threads may read it."""

    def __init__(self, store: Store, notified: Notified | None = None) -> None:
        """`notified`: where records of S3's notifications are told apart; of another log it knows nothing."""
        self.store, self.notified, self._writer = store, notified, uuid.uuid4().hex
        self._next = FIRST  # what the next segment begins with
        self._epoch: int | None = None
        self._changing = threading.Lock()  # the receiver's thread appends, Spark's forgets
        self.log = Log()
        self.seen = Seen()

    def oldest(self) -> Position:
        """Where a new query begins: orphans of one that died before its first offset are adopted so."""
        return Position(self._numbers().start)

    def take_over(self, start: Position) -> None:
        """Claims the log and reads what is in it from `start` on. Raises Fenced if others keep claiming it."""
        for _ in range(CLAIM_ATTEMPTS):
            numbers = self._numbers()
            if numbers and start.segment < numbers.start:
                raise SegmentMissing(f"the offset names segment {start.segment}, the log begins at {numbers.start}")
            if start.segment > numbers.stop or (start.row and start.segment == numbers.stop):
                raise SegmentMissing(f"the offset names segment {start.segment}, the log ends before {numbers.stop}")
            self._load(numbers, start)
            self._remember(numbers)
            self._epoch = None
            try:
                self.append(segments.EMPTY)
            except Fenced:
                continue
            return
        raise Fenced("other drivers keep claiming this staging location")

    def view(self, start: Position | None = None) -> Log:
        """Read the log from `start`, or from its oldest segment, as it is now; claim nothing. Raises SegmentMissing."""
        numbers = self._numbers()
        position = start or Position(numbers.start)
        if position.segment < numbers.start:
            raise SegmentMissing(f"the offset names segment {position.segment}, the log begins at {numbers.start}")
        self._load(numbers, position)
        return self.log

    def end(self) -> Position:
        """After the newest segment."""
        return Position(self._numbers().stop)

    def append(self, rows: pa.Table, *, deletions_failed: int = 0) -> segments.Header:
        """Publish the next segment. Raises Fenced if another writer has taken its number."""
        if self._epoch is None:
            self._epoch = self._next.number
        header = replace(
            self._next,
            epoch=self._epoch,
            writer=self._writer,
            published_ms=int(time.time() * 1000),
            messages=rows.num_rows,
            size=segments.body_size(rows),
            deletions_failed=self._next.deletions_failed + deletions_failed,
        )
        try:
            segments.publish(self.store, header, rows)
        except SegmentTaken as error:
            raise Fenced(f"segment {header.number} was published by another driver") from error
        with self._changing:
            self.log = self.log.appended(header)
        self._next = header.following()
        return header

    def sift(self, taken: Sequence[Received]) -> tuple[Sequence[Received], Sequence[Received], Sequence[str]]:
        """Tell what is to be staged from what was staged before, and return both, and the ids of the first.

        Messages come again whose deletion had not come through. Of S3's notifications each record is staged once.
        Whoever asks stages what comes first, or ends.
        """
        ids = _ids(taken)
        if self.notified is None and self.seen.taken(ids):  # the usual, at little cost
            return taken, (), ids
        now = set[str]()

        def new(message: Message) -> Message | None:
            is_known = message.message_id in self.seen or message.message_id in now
            now.add(message.message_id)
            return None if is_known else message

        fresh, again = divided(taken, new)
        if self.notified is not None:
            fresh, known = self.notified.sifted(fresh)
            again += known
        ids = _ids(fresh)
        self.seen.taken(ids)
        return fresh, again, ids

    def consumed(self, position: Position) -> None:
        """Forgets, in memory, what lies before: it is committed."""
        with self._changing:
            self.log = self.log.since(position)

    def retain(self, committed: Position, retention_s: float, *, going: segments.Going = lambda _: None) -> int:
        """Remove committed segments older than the retention, and return how many.

        `going` has their numbers first.
        """
        numbers = removable(segments.published_at(self.store), committed, before=time.time() - retention_s)
        going(numbers)
        self.store.remove([segments.segment_name(number) for number in numbers])
        return len(numbers)

    def _numbers(self) -> range:
        """List the retained segments' numbers. Raises SegmentMissing for a hole."""
        return checked_numbers(segments.published_at(self.store))

    def _load(self, numbers: range, start: Position) -> None:
        self.log, self.seen, self._next = Log(first=start.segment), Seen(), FIRST
        if not numbers:
            return
        wanted = range(max(numbers.start, start.segment - 1), numbers.stop)  # the one before says what came before
        headers = segments.headers_at(self.store, wanted)
        before = Totals(messages=headers[0].messages_before, size=headers[0].size_before)
        whole = Log(first=wanted.start, before=before)
        for header in headers:
            whole = whole.appended(header)
        self.log = whole.since(start)
        self._next = headers[-1].following()

    def _remember(self, numbers: range) -> None:
        """Take on ids whose messages may come again, their deletion cut off: the newest, and each driver's last."""
        newest: list[tuple[int, Sequence[str]]] = []
        objects: list[Sequence[bytes | None]] = []
        count = 0
        for number in reversed(numbers):
            content = self.store.read(segments.segment_name(number))
            ids = segments.ids_of(content)
            newest.append((number, ids))
            if self.notified is not None:
                objects.append(self.notified.identities(segments.rows_of(content).column("body").to_pylist()))
            count += len(ids)
            if count >= DEDUPLICATION_LIMIT:
                break
        for _, ids in newest:
            self.seen.inherited(ids)
        for ids in self._lasts(range(numbers.start, newest[-1][0] if newest else numbers.start)):
            self.seen.inherited(ids)
        if self.notified is not None:
            self.notified.begin(each for segment in reversed(objects) for each in segment)

    def _lasts(self, numbers: range) -> Iterator[Sequence[str]]:
        """Yield the last ids of each of the latest drivers in these numbers.

        What a driver that was killed hadn't deleted comes again after the visibility timeout, when others have staged
        any number of messages, and may have been killed too.
        """
        for _ in range(DRIVERS_REMEMBERED):
            if not numbers:
                return
            first = max(segments.header_at(self.store, numbers[-1]).epoch, numbers.start)
            count = 0
            for number in reversed(range(first, numbers.stop)):
                ids = segments.ids_of(self.store.read(segments.segment_name(number)))
                yield ids
                count += len(ids)
                if count >= LAST_OF_A_DRIVER:
                    break
            numbers = range(numbers.start, first)


def batches(store: Store, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices, in order: the same at every call. Raises SegmentMissing."""
    for part in slices:
        yield from segments.batches_of(store.read(segments.segment_name(part.number)), part.low, part.high)


def _ids(received: Iterable[Received]) -> list[str]:
    return [message.message_id for answer in received for message in answer.messages]
