"""Buffer of received messages that aren't durable yet, first as objects, then as Arrow columns, in a byte budget."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from sluice_spark.log.planning import ROWS_PER_TASK
from sluice_spark.log.segments import build_rows
from sluice_spark.log.staging import StagedLog
from sluice_spark.source.budget import COPIES, OBJECTS_BYTES, ByteBudget, MessageSizes
from sluice_spark.source.fifo import is_fifo, sort_by_sequence
from sluice_spark.sqs.received import Message, ReceiptHandles, Received, group_receipt_handles, split_by_size

CHUNK_MESSAGES = 4_000  # number of messages converted at once: takes 5 ms, so needs no thread
CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferLimits:
    """Limits of segments, and of messages that Spark hasn't read yet. Option `maxBufferedBytes` limits the memory."""

    segment_messages: int = ROWS_PER_TASK
    segment_bytes: int = 16 * 2**20
    segment_age_s: float = 0.25
    undeleted_messages: int = 100_000  # maximum durable messages that aren't deleted from SQS yet
    backlog_messages: int = 1_000_000  # maximum durable messages that no batch contains yet
    backlog_bytes: int = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages as Arrow columns, ready to be staged, with the ids and receipt handles that deletion will need.

    `again` has receipt handles of messages that were staged before. `held_bytes` are the bytes in the budget.
    """

    rows: Sequence[pa.RecordBatch]
    ids: Sequence[str]
    new_handles: Sequence[ReceiptHandles]
    known_handles: Sequence[ReceiptHandles]
    held_bytes: int

    @property
    def handles(self) -> Sequence[ReceiptHandles]:
        """The receipt handles of all messages, new and staged before."""
        return [*self.new_handles, *self.known_handles]


class Buffer:
    """Collects messages for the next segment, at most a quarter of `limit_bytes`. Used in one event loop."""

    def __init__(self, staged: StagedLog, limits: BufferLimits, limit_bytes: int, queue_urls: Sequence[str]) -> None:
        self._staged, self._limits = staged, limits
        self.budget = ByteBudget(limit=limit_bytes)
        self._quarter = limit_bytes // 4
        self._in_order = any(is_fifo(queue_url) for queue_url in queue_urls)
        self._unsettled: list[Received] = []
        self._unsettled_messages = self._unsettled_bytes = 0
        self._chunks: list[Chunk] = []
        self._oldest_at = 0.0
        self._bytes = 0
        self.messages = 0
        self._sent: Sequence[pa.Array] = ()  # times when the last converted messages were sent

    @property
    def is_full(self) -> bool:
        """Whether the buffer holds as much as a segment may have."""
        limit_bytes = min(self._limits.segment_bytes, self._quarter)
        return self.messages >= self._limits.segment_messages or self._bytes >= limit_bytes

    def is_stage_due(self, response_sizes: Sequence[int]) -> bool:
        """Whether to stage the buffer now: it is full or old, or a response of `response_sizes` has no room."""
        if not self.messages:
            return False
        # An expected response counts as at most a quarter of the limit, because the expectation can be outdated.
        full = any(self.budget.is_full_for(min(size, self._quarter)) for size in response_sizes)
        return self.is_full or full or time.monotonic() - self._oldest_at >= self._limits.segment_age_s

    def add(self, queue_url: str, messages: Sequence[Message], sizes: MessageSizes) -> None:
        """Add the messages of one receive to the buffer."""
        if not self.messages:
            self._oldest_at = time.monotonic()
        # A FIFO queue's messages become columns only when the segment is staged, as the whole segment is sorted first.
        held = sizes.memory_with_copies if self._in_order else sizes.memory
        self.budget.hold(held)
        self._unsettled.append(Received(queue_url, messages))
        self._unsettled_messages += len(messages)
        self._unsettled_bytes += held
        self.messages += len(messages)
        self._bytes += sizes.bodies
        chunk = self._unsettled_messages >= CHUNK_MESSAGES or self._unsettled_bytes >= CHUNK_BYTES
        if chunk and not self._in_order:
            self._convert_to_columns()

    @contextmanager
    def take_all(self) -> Iterator[list[Chunk]]:
        """Take all chunks; their memory counts as held until the context ends."""
        self._convert_to_columns()
        chunks, self._chunks = self._chunks, []
        self.messages = self._bytes = 0
        held = sum(chunk.held_bytes for chunk in chunks)
        try:
            yield chunks
        finally:
            chunks.clear()
            self.budget.free(held)

    def take_sent_ms(self) -> int | None:
        """Return when the oldest of the last new messages was sent, in epoch milliseconds; None without messages."""
        columns, self._sent = self._sent, ()
        return find_earliest_ms(columns)

    def _convert_to_columns(self) -> None:
        """Convert the received messages to Arrow columns; keep only ids and receipt handles of the message objects."""
        taken, self._unsettled = self._unsettled, []
        size, self._unsettled_bytes, self._unsettled_messages = self._unsettled_bytes, 0, 0
        if not taken:
            return
        fresh, again, ids = self._staged.split_new(sort_by_sequence(taken))
        columns = [build_rows(piece) for piece in split_by_size(fresh, CHUNK_BYTES)]
        if columns:
            self._sent = [piece.column("sent_at") for piece in columns]
        held = OBJECTS_BYTES * len(ids) + COPIES * sum([piece.nbytes for piece in columns])
        self.budget.hold(held)
        self._chunks.append(Chunk(columns, ids, group_receipt_handles(fresh), group_receipt_handles(again), held))
        del taken, fresh, again
        self.budget.free(size)


def find_earliest_ms(times: Iterable[pa.Array]) -> int | None:
    """Return the earliest time in columns of times, in epoch milliseconds; None without times."""
    microseconds = [at for column in times for at in column.view(pa.int64()).to_pylist() if at is not None]
    return min(microseconds) // 1000 if microseconds else None
