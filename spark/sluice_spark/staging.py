"""The staged log in its store: recovery, takeover, append, read, retention. What is decided there is decided in
planning.

Whoever writes the log first publishes an empty segment, its claim: from then on an earlier writer finds its next
number taken, and stops. The
newest driver wins, so that one restarted after a lost host isn't kept out by the one that is still dying.
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from sluice_spark.errors import Fenced, LogError, SegmentMissing, SegmentTaken
from sluice_spark.offsets import Position, Totals
from sluice_spark.planning import DEDUPLICATION_LIMIT, Log, Seen, Slice, checked_numbers, removable
from sluice_spark.segments import HEAD_BYTES, SCHEMA, Header, body_size, encoded, header_of, rows_of
from sluice_spark.store import Store

log = logging.getLogger(__name__)

FOLDER = "segments"
CLAIM_ATTEMPTS = 20
READERS = 16
PUBLISH_ATTEMPTS = 6
PUBLISH_AGAIN_S = 0.5


class StagedLog:
    """One writer's view of the log. `log` is replaced as a whole, so that other threads may read it."""

    def __init__(self, store: Store) -> None:
        self._store, self._writer = store, uuid.uuid4().hex
        self._next: Header | None = None
        self._changing = threading.Lock()  # the receiver's thread appends, Spark's forgets
        self.log = Log()
        self.seen = Seen()

    def oldest(self) -> Position:
        """Where a new query begins: orphans of one that died before its first offset are adopted so."""
        return Position(checked_numbers(self._numbers()).start)

    def take_over(self, start: Position) -> None:
        """Claims the log and reads what is in it from `start` on. Raises Fenced if others keep claiming it."""
        for _ in range(CLAIM_ATTEMPTS):
            numbers = checked_numbers(self._numbers())
            if numbers and start.segment < numbers.start:
                raise SegmentMissing(f"the offset names segment {start.segment}, the log begins at {numbers.start}")
            if start.segment > numbers.stop or (start.row and start.segment == numbers.stop):
                raise SegmentMissing(f"the offset names segment {start.segment}, the log ends before {numbers.stop}")
            self._load(numbers, start)
            self._remember(numbers)
            try:
                self.append(pa.Table.from_batches([], schema=SCHEMA))
            except Fenced:
                continue
            return
        raise Fenced("other drivers keep claiming this staging location")

    def view(self, start: Position | None = None) -> Log:
        """The log from `start`, or from its oldest segment, as it is now: claims nothing."""
        numbers = checked_numbers(self._numbers())
        position = start or Position(numbers.start)
        if position.segment < numbers.start:
            raise SegmentMissing(f"the offset names segment {position.segment}, the log begins at {numbers.start}")
        self._load(numbers, position)
        return self.log

    def end(self) -> Position:
        """After the newest segment."""
        return Position(checked_numbers(self._numbers()).stop)

    def append(self, rows: pa.Table, *, deletions_failed: int = 0) -> Header:
        """Publishes the next segment. Raises Fenced if another writer has taken its number."""
        last = self._next
        header = Header(
            number=last.number if last else 0,
            writer=self._writer,
            published_ms=int(time.time() * 1000),
            messages=rows.num_rows,
            size=body_size(rows),
            messages_before=last.messages_before if last else 0,
            size_before=last.size_before if last else 0,
            deletions_failed=(last.deletions_failed if last else 0) + deletions_failed,
        )
        self._publish(header, encoded(rows, header))
        self._advance(header)
        return header

    def consumed(self, position: Position) -> None:
        """Forgets, in memory, what lies before: it is committed."""
        with self._changing:
            self.log = self.log.since(position)

    def retain(self, committed: Position, retention_s: float) -> int:
        """Removes committed segments older than the retention; how many."""
        published = {_number(name): at for name, at in self._store.names(FOLDER).items()}
        numbers = removable(published, committed, before=time.time() - retention_s)
        self._store.remove([segment_name(number) for number in numbers])
        return len(numbers)

    def _numbers(self) -> list[int]:
        return [_number(name) for name in self._store.names(FOLDER)]

    def _load(self, numbers: range, start: Position) -> None:
        self.log, self.seen, self._next = Log(first=start.segment), Seen(), None
        if not numbers:
            return
        wanted = range(max(numbers.start, start.segment - 1), numbers.stop)  # the one before says what came before
        with ThreadPoolExecutor(READERS) as readers:
            headers = list(readers.map(self._header, wanted))
        before = Totals(messages=headers[0].messages_before, size=headers[0].size_before)
        whole = Log(first=wanted.start, before=before)
        for header in headers:
            whole = whole.appended(header)
        self.log = whole.since(start)
        self._next = _following(headers[-1])

    def _remember(self, numbers: range) -> None:
        """Ids of the newest segments: their messages may come again, if their deletion was cut off."""
        newest: list[tuple[int, list[str]]] = []
        count = 0
        for number in reversed(numbers):
            ids = rows_of(self._store.read(segment_name(number))).column("message_id").to_pylist()
            newest.append((number, ids))
            count += len(ids)
            if count >= DEDUPLICATION_LIMIT:
                break
        for number, ids in reversed(newest):
            self.seen.staged(number, ids)
        for number, _ in newest:
            self.seen.confirmed(number)  # bounded from here on; all of `newest` is still remembered now

    def _header(self, number: int) -> Header:
        return header_of(self._store.head(segment_name(number), HEAD_BYTES))

    def _publish(self, header: Header, content: pa.Buffer) -> None:
        for attempt in range(1, PUBLISH_ATTEMPTS + 1):
            try:
                self._store.publish(segment_name(header.number), content)
            except SegmentTaken as error:
                if self._header(header.number).writer != self._writer:
                    raise Fenced(f"segment {header.number} was published by another driver") from error
                return  # an earlier try of ours had come through, and only its answer was lost
            except (OSError, LogError) as error:
                if attempt == PUBLISH_ATTEMPTS:
                    raise
                log.warning("publishing segment %d again: %s", header.number, error)
                time.sleep(PUBLISH_AGAIN_S * attempt)
            else:
                return

    def _advance(self, header: Header) -> None:
        with self._changing:
            self.log = self.log.appended(header)
        self._next = _following(header)


def segment_name(number: int) -> str:
    """Sorted by name is sorted by number."""
    return f"{FOLDER}/{number:020d}.arrow"


def batches(store: Store, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """The rows of the slices, in order: the same at every call."""
    for part in slices:
        rows = rows_of(store.read(segment_name(part.number)))
        yield from rows.replace_schema_metadata(None).slice(part.low, part.high - part.low).to_batches()


def _following(header: Header) -> Header:
    return Header(
        number=header.number + 1,
        writer="",
        published_ms=0,
        messages_before=header.messages_before + header.messages,
        size_before=header.size_before + header.size,
        deletions_failed=header.deletions_failed,
    )


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".arrow"))
