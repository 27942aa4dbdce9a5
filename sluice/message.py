"""Received and outgoing SQS messages, for all of Sluice. Pure.

Lambda and the SQS API encode the same message in two ways; only this module parses both. Values that are created per
message are msgspec structs, which take a fifth of the time of a frozen dataclass.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

FIFO_SUFFIX = ".fifo"  # Names of FIFO queues end in this suffix.
MAX_ATTRIBUTES = 10
MAX_MESSAGE_BYTES = 1_048_576  # Size limit of a message's body and attributes, and of a batch of messages.
TRACE_HEADER: Final = "AWSTraceHeader"
MAX_NAME_CHARACTERS = 256  # Limit of the name of a message attribute.
# SQS, like XML 1.0, refuses these characters. A pattern of the allowed characters would take 3 ms to compile.
NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


class Value(msgspec.Struct, frozen=True):
    """A message attribute. `data_type` is `String`, `Number` or `Binary`, optionally with a custom `.label`."""

    data_type: str
    content: str | bytes

    @classmethod
    def from_lambda(cls, value: Mapping[str, Any]) -> "Value":
        """Parse a message attribute of a record of a Lambda event."""
        binary = value.get("binaryValue")
        content = value.get("stringValue") or "" if binary is None else base64.b64decode(binary)
        return cls(value["dataType"], content)

    @classmethod
    def from_api(cls, value: Mapping[str, Any]) -> "Value":
        """Parse a message attribute that `ReceiveMessage` returned."""
        binary = value.get("BinaryValue")
        return cls(value["DataType"], value.get("StringValue") or "" if binary is None else bytes(binary))

    @property
    def text(self) -> str | None:
        """The text of a String or a Number attribute; None for a Binary attribute."""
        return self.content if isinstance(self.content, str) else None

    @property
    def size(self) -> int:
        """The attribute's size in bytes, as SQS counts it: the type and the content."""
        return _count_utf8_bytes(self.data_type) + (
            len(self.content) if isinstance(self.content, bytes) else _count_utf8_bytes(self.content)
        )

    def api(self) -> dict[str, Any]:
        """Encode the attribute for the SQS API."""
        key = "BinaryValue" if isinstance(self.content, bytes) else "StringValue"
        return {"DataType": self.data_type, key: self.content}

    def to_lambda(self) -> dict[str, str]:
        """Encode the attribute as Lambda events do. `Message.from_lambda` reads this form."""
        if isinstance(self.content, bytes):
            return {"dataType": self.data_type, "binaryValue": base64.b64encode(self.content).decode()}
        return {"dataType": self.data_type, "stringValue": self.content}


Attributes = Mapping[str, Value]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A received message. `system` holds the system attributes by name: `SentTimestamp`, `MessageGroupId` and so on."""

    message_id: str
    body: str
    attributes: Attributes = msgspec.field(default_factory=dict)
    system: Mapping[str, str] = msgspec.field(default_factory=dict)
    receipt_handle: str = ""

    @classmethod
    def from_lambda(cls, record: Mapping[str, Any]) -> "Message":
        """Parse one record of the Lambda event of an SQS event source mapping."""
        return cls(
            message_id=record["messageId"],
            body=record["body"],
            attributes={
                name: Value.from_lambda(value) for name, value in (record.get("messageAttributes") or {}).items()
            },
            system=record.get("attributes") or {},
            receipt_handle=record.get("receiptHandle", ""),
        )

    @classmethod
    def from_api(cls, received: Mapping[str, Any]) -> "Message":
        """Parse a message that `ReceiveMessage` returned."""
        return cls(
            message_id=received["MessageId"],
            body=received["Body"],
            attributes={
                name: Value.from_api(value) for name, value in (received.get("MessageAttributes") or {}).items()
            },
            system=dict(received.get("Attributes") or {}),
            receipt_handle=received.get("ReceiptHandle", ""),
        )

    @property
    def group_id(self) -> str | None:
        """The message group id. FIFO messages have one, and standard messages that are sent for fair queueing."""
        return self.system.get("MessageGroupId")

    @property
    def deduplication_id(self) -> str | None:
        """The message's deduplication id in a FIFO queue."""
        return self.system.get("MessageDeduplicationId")

    @property
    def receive_count(self) -> int:
        """SQS's approximate receive count of the message, including this receive."""
        return int(self.system.get("ApproximateReceiveCount", 1))

    @property
    def sent_at_ms(self) -> int | None:
        """The time when SQS accepted the message, in milliseconds since 1970."""
        sent = self.system.get("SentTimestamp")
        return int(sent) if sent is not None else None

    @property
    def sender_id(self) -> str:
        """SQS's id of the sender: a role's id and session name, or a user's id. It is "" if SQS wasn't asked for it."""
        return self.system.get("SenderId", "")

    @property
    def trace_header(self) -> str | None:
        """The X-Ray trace header of the message."""
        return self.system.get(TRACE_HEADER)

    @property
    def size(self) -> int:
        """The message's size in bytes, as SQS counts it."""
        return message_size(self.body, self.attributes)


def drop_contents(message: Message) -> Message:
    """Return the message without body and attributes, which saves memory if thousands of messages wait."""
    return msgspec.structs.replace(message, body="", attributes={})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: the message, the reason, and the ARN of its source queue."""

    message: Message
    reason: str
    source: str


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be sent. A FIFO queue needs a group and a deduplication id; a standard queue has only groups."""

    body: str
    attributes: Attributes = {}
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None

    @property
    def size(self) -> int:
        """The message's size in bytes, as SQS counts it: without the trace header."""
        return message_size(self.body, self.attributes)

    def fields(self) -> dict[str, Any]:
        """Return the arguments of `SendMessage`, or of an entry of `SendMessageBatch` without its `Id`."""
        arguments: dict[str, Any] = {"MessageBody": self.body}
        if self.attributes:
            arguments["MessageAttributes"] = {name: value.api() for name, value in self.attributes.items()}
        if self.trace_header is not None:
            arguments["MessageSystemAttributes"] = build_trace_attributes(self.trace_header)
        if self.group_id is not None:
            arguments["MessageGroupId"] = self.group_id
        if self.deduplication_id is not None:
            arguments["MessageDeduplicationId"] = self.deduplication_id
        return arguments

    def entry(self, entry_id: str) -> dict[str, Any]:
        """Return the message as an entry of `SendMessageBatch`."""
        return {"Id": entry_id} | self.fields()


def is_attribute_name(name: str) -> bool:
    """Whether SQS accepts a message attribute of this name."""
    return len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None


def build_trace_attributes(trace_header: str | None) -> dict[str, Any]:
    """Return the system attributes of a message to be sent: its trace header, if it has a trace."""
    return {} if trace_header is None else {TRACE_HEADER: Value("String", trace_header).api()}


def message_size(body: str, attributes: Attributes) -> int:
    """Return a message's size in bytes as SQS counts it: the body and each attribute's name, type and value."""
    size = _count_utf8_bytes(body)
    for name, value in attributes.items():
        content = value.content
        size += _count_utf8_bytes(name) + _count_utf8_bytes(value.data_type)
        size += len(content) if isinstance(content, bytes) else _count_utf8_bytes(content)
    return size


def _count_utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", errors="surrogatepass"))
