"""Received messages: classes that the staged log and the source use without depending on the SQS client. Pure.

SQS's JSON is decoded directly into these structs. With dicts, decoding would take twice as long, and garbage collection
longer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

BATCH_LIMIT = 10  # maximum number of messages in one call


class SystemAttributes(msgspec.Struct, frozen=True, gc=False, rename="pascal", kw_only=True):
    """System attributes of a message that have a column. Times are epoch milliseconds, as decimal digits."""

    sent_timestamp: str | None = None
    approximate_first_receive_timestamp: str | None = None
    approximate_receive_count: str = "1"
    sender_id: str | None = None
    message_group_id: str | None = None
    message_deduplication_id: str | None = None
    sequence_number: str | None = None
    trace_header: str | None = msgspec.field(name="AWSTraceHeader", default=None)
    dead_letter_queue_source_arn: str | None = None


class Attribute(msgspec.Struct, frozen=True, gc=False, rename="pascal", kw_only=True):
    """A message attribute, which the sender has set."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None


NO_SYSTEM = SystemAttributes()


class Message(msgspec.Struct, frozen=True, gc=False, rename="pascal", kw_only=True):
    """A message as received from SQS."""

    message_id: str
    body: str
    receipt_handle: str = ""
    attributes: SystemAttributes = NO_SYSTEM
    message_attributes: Mapping[str, Attribute] | None = None


class _Answer(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    messages: tuple[Message, ...] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def parse_messages(answer: bytes | memoryview) -> Sequence[Message]:
    """Parse the response to a receive. Raises ValueError for other content."""
    return (_ANSWER.decode(answer).messages or ()) if answer else ()


@dataclass(frozen=True, slots=True)
class Received:
    """The messages of one receive, and their queue."""

    queue_url: str
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class ReceiptHandles:
    """Receipt handles of one queue's messages, and perhaps the message ids, for deletion or visibility changes."""

    queue_url: str
    receipt_handles: Sequence[str]
    message_ids: Sequence[str] = ()


def group_receipt_handles(received: Iterable[Received]) -> list[ReceiptHandles]:
    """Collect the messages' receipt handles and ids by queue, in order."""
    by_queue: dict[str, list[Message]] = {}
    for answer in received:
        by_queue.setdefault(answer.queue_url, []).extend(answer.messages)
    return [
        ReceiptHandles(
            url, [message.receipt_handle for message in messages], [message.message_id for message in messages]
        )
        for url, messages in by_queue.items()
    ]


def split_messages(
    received: Iterable[Received], keep: Callable[[Message], Message | None]
) -> tuple[list[Received], list[Received]]:
    """Split messages, in order. Returns the messages that `keep` returns, then messages for which it returns None."""
    kept: list[Received] = []
    dropped: list[Received] = []
    for answer in received:
        kept_messages: list[Message] = []
        dropped_messages: list[Message] = []
        for message in answer.messages:
            new_message = keep(message)
            if new_message is None:
                dropped_messages.append(message)
            else:
                kept_messages.append(new_message)
        if kept_messages:
            kept.append(Received(answer.queue_url, kept_messages))
        if dropped_messages:
            dropped.append(Received(answer.queue_url, dropped_messages))
    return kept, dropped


def attribute_values(messages: Iterable[Message]) -> list[str | bytes]:
    """Collect the values of all message attributes."""
    bearing = [message.message_attributes for message in messages if message.message_attributes]
    return [
        attribute.string_value or attribute.binary_value or ""
        for attributes in bearing
        for attribute in attributes.values()
    ]


def split_by_size(received: Sequence[Received], size: int) -> Iterator[Sequence[Received]]:
    """Split messages, in order, into pieces of about `size` characters. A message that reaches `size` ends a piece."""
    taken, left = list[Received](), size
    for answer in received:
        start = 0
        for end, message in enumerate(answer.messages, 1):
            left -= len(message.body)
            if left <= 0:
                yield [*taken, Received(answer.queue_url, answer.messages[start:end])]
                taken, left, start = [], size, end
        if start < len(answer.messages):
            taken.append(Received(answer.queue_url, answer.messages[start:]) if start else answer)
    if taken:
        yield taken


def batch_receipt_handles(receipts: Iterable[ReceiptHandles]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each queue's receipt handles in batches of BATCH_LIMIT."""
    by_queue: dict[str, list[str]] = {}
    for queue_handles in receipts:
        by_queue.setdefault(queue_handles.queue_url, []).extend(queue_handles.receipt_handles)
    for queue_url, handles in by_queue.items():
        for start in range(0, len(handles), BATCH_LIMIT):
            yield queue_url, handles[start : start + BATCH_LIMIT]
