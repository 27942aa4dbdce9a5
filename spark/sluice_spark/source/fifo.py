"""Order of message groups: a segment is sorted by sequence number, and a batch has each group in one task. Pure.

Across segments SQS keeps the order: while a message of a group is in flight, SQS delivers no other message of the
group. A message is deleted only after its segment is durable.
"""

import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice_spark.sqs.received import Message, Received

FIFO = ".fifo"


@dataclass(frozen=True, slots=True)
class GroupShare:
    """One of `count` disjoint shares of all message groups: share number `index`."""

    index: int
    count: int


def is_fifo(queue_url: str) -> bool:
    """Whether the queue's name ends in `.fifo`, as SQS requires of FIFO queues."""
    return queue_url.endswith(FIFO)


def create_attempt_id(queue_url: str) -> str | None:
    """Create a ReceiveRequestAttemptId for a receive and its retries, so that a retry gets the same locked messages.

    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
    """
    return uuid.uuid4().hex if is_fifo(queue_url) else None


def sort_by_sequence(received: Sequence[Received]) -> Sequence[Received]:
    """Sort FIFO queues' messages by sequence number, because responses can overtake each other after a timeout.

    Sequence numbers have 20 decimal digits and grow within a group. Messages of standard queues keep their order.
    """
    as_they_came = [answer for answer in received if not is_fifo(answer.queue_url)]
    by_queue: dict[str, list[Message]] = {}
    for answer in received:
        if is_fifo(answer.queue_url):
            by_queue.setdefault(answer.queue_url, []).extend(answer.messages)
    for messages in by_queue.values():
        messages.sort(key=lambda message: int(message.attributes.sequence_number or 0))
    return as_they_came + [Received(queue_url, messages) for queue_url, messages in by_queue.items()]


def select_group_share(batch: pa.RecordBatch, share: GroupShare) -> pa.RecordBatch:
    """Select the rows whose message group belongs to the share, in order. Each row belongs to exactly one share.

    The result is the same in every process, unlike with hash().
    """
    keys = zip(batch.column("queue_url").to_pylist(), batch.column("message_group_id").to_pylist(), strict=True)
    mine = [zlib.crc32(f"{url} {group}".encode()) % share.count == share.index for url, group in keys]
    return batch.filter(pa.array(mine, pa.bool_()))
