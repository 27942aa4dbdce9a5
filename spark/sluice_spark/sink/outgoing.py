"""Converts rows to messages and packs them into batches within SQS's limits. Pure.

Limits: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html
"""

import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Deduplication = Literal["row", "content"]  # FIFO queues keep all equal rows (`row`) or only one (`content`).

BATCH_MESSAGES = 10
BATCH_BYTES = 2**20  # maximum bytes of a batch, and of a message with its attributes
ATTRIBUTES_LIMIT = 10
DELAY_LIMIT_S = 900
MAX_REMEMBERED = 1_000_000  # remembered contents of a task's rows: more rows than SQS accepts in five minutes
OPEN_LIMIT = 1_000  # maximum number of unfinished batches, one per queue, or lane of a FIFO queue
# SQS refuses the characters that XML 1.0 doesn't allow: https://www.w3.org/TR/REC-xml/#charsets
_UNSENDABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The same characters in UTF-8, where a search takes a tenth of the time. Surrogates are missing: they can't be encoded.
_CONTROLS = bytes(byte for byte in range(ord(" ")) if byte not in b"\t\n\r")
_NONCHARACTERS = ("\ufffe".encode(), "\uffff".encode())
_ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws|amazon)\.)(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
_ATTRIBUTE_TYPE = re.compile(r"(String|Number|Binary)(\..+)?")
_TOKEN = re.compile(r"[!-~]{1,128}")  # a message group id or deduplication id: letters, digits and punctuation


@dataclass(frozen=True, slots=True)
class RowPosition:
    """A row's partition, and its index in the partition from 0. The position is the same in every attempt of a task."""

    partition: int
    row: int

    def __str__(self) -> str:
        return f"partition {self.partition}, row {self.row}"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. `entry` is the message's entry of SendMessageBatch, without the Id."""

    row_position: RowPosition
    queue_url: str
    entry: Mapping[str, Any]
    size: int
    group: str | None = None  # message group in a FIFO queue; None for a standard queue


@dataclass(frozen=True, slots=True)
class UnsentRow:
    """A row that can't be sent, and the reason. The reason never contains the body, which may be confidential."""

    row_position: RowPosition
    reason: str

    def __str__(self) -> str:
        return f"{self.row_position}: {self.reason}"


@dataclass(slots=True)
class DeduplicationIds:
    """Makes deduplication ids from messages' content, so that a row's id doesn't depend on the partitions.

    `write` identifies the write, and stays the same in retried tasks. Equal rows of a task have different numbers,
    which become part of the id. If `write` is None, equal rows of all writes get the same id and become one message.
    """

    write: str | None
    _counts: dict[bytes, int] = field(default_factory=dict)  # number of equal rows in the task, by digest

    def next_id(self, queue_url: str, entry: Mapping[str, Any]) -> str:
        """Return the deduplication id for the task's next row. `entry` is the row's entry of SendMessageBatch."""
        attributes = sorted((name, sorted(value.items())) for name, value in entry.get("MessageAttributes", {}).items())
        content = hashlib.sha256(repr((queue_url, entry["MessageGroupId"], entry["MessageBody"], attributes)).encode())
        if self.write is not None:
            number = self._counts.pop(key := content.digest()[:16], 0)
            self._counts[key] = number + 1
            if len(self._counts) > MAX_REMEMBERED:
                del self._counts[next(iter(self._counts))]
            content.update(f"{self.write}/{number}".encode())
        return content.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteContext:
    """The queues, and the source of deduplication ids, that the rows of a task share."""

    queue_urls: tuple[str, ...]
    ids: DeduplicationIds


def build_message(row: Mapping[str, Any], position: RowPosition, context: WriteContext) -> OutgoingMessage | UnsentRow:
    """Convert a row to a message, or return the reason why the row can't be sent."""
    try:
        return _build_message(row, position, context)
    except ValueError as error:
        return UnsentRow(position, str(error))


def _build_message(row: Mapping[str, Any], position: RowPosition, context: WriteContext) -> OutgoingMessage:
    queue_url = _queue_url(row.get("queue_url"), context.queue_urls)
    body = _check_text("body", row.get("body"))
    entry: dict[str, Any] = {"MessageBody": body}
    size = len(body) if body.isascii() else len(body.encode())
    if attribute_column := row.get("attributes"):
        entry["MessageAttributes"] = attributes = _encode_attributes(attribute_column)
        size += sum(_measure_attribute(name, value) for name, value in attributes.items())
    if size > BATCH_BYTES:
        raise ValueError(f"{size} bytes with its attributes, a message has at most {BATCH_BYTES}")
    if row.get("trace_header") is not None:
        entry["MessageSystemAttributes"] = {
            "AWSTraceHeader": {"DataType": "String", "StringValue": _check_text("trace_header", row["trace_header"])}
        }
    fifo = queue_url.endswith(".fifo")
    entry |= _build_queue_fields(row, is_fifo=fifo)
    if fifo and "MessageDeduplicationId" not in entry:
        entry["MessageDeduplicationId"] = context.ids.next_id(queue_url, entry)
    return OutgoingMessage(position, queue_url, entry, size, entry.get("MessageGroupId") if fifo else None)


def _queue_url(row_queue_url: str | None, queue_urls: tuple[str, ...]) -> str:
    if len(queue_urls) == 1:  # Replaces the source's queue in the source's frames.
        return queue_urls[0]
    if not row_queue_url:
        raise ValueError("queue_url is null, and option queueUrl names no single queue")
    if queue_urls and row_queue_url not in queue_urls:
        raise ValueError(f"queue_url {row_queue_url!r} is none of option queueUrl's")
    if not re.fullmatch(r"https?://[^/\s]+/\S+", row_queue_url):
        raise ValueError(f"queue_url {row_queue_url!r} is not a queue URL")
    return row_queue_url


def _check_text(column: str, value: Any) -> str:
    """Return the value as text. Raises ValueError for null, empty, invalid UTF-8 and characters that SQS refuses."""
    if value is None or not len(value):
        raise ValueError(f"{column} is {'null' if value is None else 'empty'}")
    try:
        text = value if isinstance(value, str) else bytes(value).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{column} is not UTF-8: {error.reason} at byte {error.start}") from error
    if not _is_sendable(text) and (unsendable := _UNSENDABLE.search(text)):
        character = ord(unsendable[0])
        raise ValueError(f"{column} has U+{character:04X} at {unsendable.start()}, which SQS doesn't take")
    return text


def _is_sendable(text: str) -> bool:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return False
    if len(encoded.translate(None, _CONTROLS)) < len(encoded):
        return False
    return text.isascii() or not any(character in encoded for character in _NONCHARACTERS)


def _encode_attributes(attributes: Any) -> dict[str, dict[str, Any]]:
    pairs = dict(attributes)  # The map is a dict in a Row, a list of pairs in Arrow.
    if len(pairs) > ATTRIBUTES_LIMIT:
        raise ValueError(f"{len(pairs)} attributes, a message has at most {ATTRIBUTES_LIMIT}")
    for name in pairs:
        if not _ATTRIBUTE_NAME.fullmatch(name):
            raise ValueError(f"attribute name {name[:256]!r} is none that SQS takes")
    return {name: _encode_attribute(name, value) for name, value in pairs.items()}


def _encode_attribute(name: str, value: Any) -> dict[str, Any]:
    """Encode an attribute for SQS from a string, bytes, or the source's {type, string, binary}."""
    column = f"attribute {name!r}"
    if isinstance(value, str):
        return {"DataType": "String", "StringValue": _check_text(column, value)}
    if isinstance(value, bytes | bytearray):
        value = {"binary": value}
    if value is None:
        raise ValueError(f"{column} is null")
    text, binary = value.get("string"), value.get("binary")
    kind = value.get("type") or ("String" if binary is None else "Binary")
    if not _ATTRIBUTE_TYPE.fullmatch(kind):
        raise ValueError(f"{column} has type {kind!r}, not String, Number or Binary")
    if kind.startswith("Binary"):
        if not binary:
            raise ValueError(f"{column} of type {kind} has no bytes")
        return {"DataType": kind, "BinaryValue": b64encode(bytes(binary)).decode()}
    return {"DataType": kind, "StringValue": _check_text(column, text)}


def _measure_attribute(name: str, value: Mapping[str, str]) -> int:
    """Return an attribute's size in bytes: name, type and value. For base64 the result is up to 2 bytes too large."""
    content = len(value["BinaryValue"]) * 3 // 4 if "BinaryValue" in value else len(value["StringValue"].encode())
    return len(name.encode()) + len(value["DataType"].encode()) + content


def _build_queue_fields(row: Mapping[str, Any], *, is_fifo: bool) -> dict[str, Any]:
    """Return the request fields that differ between standard and FIFO queues. Raises ValueError for invalid fields."""
    fields: dict[str, Any] = {}
    seconds = row.get("delay_seconds")
    if seconds is not None:
        if not 0 <= seconds <= DELAY_LIMIT_S:
            raise ValueError(f"delay_seconds is {seconds}, not 0 to {DELAY_LIMIT_S}")
        if is_fifo:
            raise ValueError("delay_seconds: a FIFO queue has one delay for all messages, its own")
        fields["DelaySeconds"] = seconds
    for column, name in (
        ("message_group_id", "MessageGroupId"),
        ("message_deduplication_id", "MessageDeduplicationId"),
    ):
        value = row.get(column)
        # A received message's id isn't used: another message, sent five minutes earlier or later, can have it.
        is_received = column == "message_deduplication_id" and row.get("sequence_number") is not None
        if value is None or is_received:
            continue
        if not _TOKEN.fullmatch(value):
            raise ValueError(f"{column} is not 1 to 128 letters, digits and punctuation")
        fields[name] = value
    if is_fifo and "MessageGroupId" not in fields:
        raise ValueError("message_group_id is null, and the queue is FIFO")
    if not is_fifo and "MessageDeduplicationId" in fields:
        raise ValueError("message_deduplication_id: only a FIFO queue takes one")
    return fields


@dataclass(slots=True)
class Batch:
    """A batch for one queue: at most BATCH_MESSAGES messages, BATCH_BYTES bytes, and one message of each FIFO group."""

    queue_url: str
    lane: int
    messages: list[OutgoingMessage] = field(default_factory=list)
    size: int = 0

    def has_room_for(self, message: OutgoingMessage) -> bool:
        """Whether the batch has room for the message.

        A FIFO message waits until its predecessor in the group is accepted. SQS may accept only a part of a batch, and
        a retried message would then follow its successor.
        """
        if len(self.messages) == BATCH_MESSAGES or self.size + message.size > BATCH_BYTES:
            return False
        return message.group is None or all(other.group != message.group for other in self.messages)


class Packer:
    """Packs messages into batches. A message group stays in one lane, in order. Other batches use the lanes in turn."""

    def __init__(self, lanes: int) -> None:
        self._lanes, self._turn = lanes, 0
        self._open: dict[tuple[str, int | None], Batch] = {}

    def add(self, message: OutgoingMessage) -> Batch | None:
        """Add a message. Returns a batch if one is complete now."""
        of_group = None if message.group is None else zlib.crc32(message.group.encode()) % self._lanes
        key = message.queue_url, of_group
        batch, ready = self._open.get(key), None
        if batch and not batch.has_room_for(message):
            ready, batch = self._open.pop(key), None
        if batch is None:
            if len(self._open) == OPEN_LIMIT:
                ready = self._open.pop(next(iter(self._open)))
            self._turn = (self._turn + (of_group is None)) % self._lanes
            batch = self._open[key] = Batch(message.queue_url, self._turn if of_group is None else of_group)
        batch.messages.append(message)
        batch.size += message.size
        if len(batch.messages) == BATCH_MESSAGES:  # The open batch had room, so `ready` is None.
            ready = self._open.pop(key)
        return ready

    def take_remaining(self) -> Iterable[Batch]:
        """Take the remaining batches, which are not full."""
        left, self._open = list(self._open.values()), {}
        return left
