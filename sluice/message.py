"""A message of SQS as all of Sluice sees it: what was received, and what is sent. Pure.

Lambda and the SQS API spell the same message in two ways; both are parsed here, once, and only here.
What is made for each message on its way is a struct: it takes a fifth of the time of a frozen dataclass.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

MAX_ATTRIBUTES = 10
MAX_MESSAGE_BYTES = 1_048_576  # body and attributes; a batch's messages together have the same limit
TRACE_HEADER: Final = "AWSTraceHeader"
MAX_NAME_CHARACTERS = 256  # of an attribute
# What SQS refuses, as XML 1.0 does. Named the other way round, by what it takes, each import would compile it for 3 ms.
NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NAME = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


class Value(msgspec.Struct, frozen=True):
    """A message attribute: `data_type` is `String`, `Number` or `Binary`, perhaps with a `.label` of the sender's."""

    data_type: str
    content: str | bytes

    @property
    def text(self) -> str | None:
        """The text of a String or a Number; None of a Binary."""
        return self.content if isinstance(self.content, str) else None

    @property
    def size(self) -> int:
        """Bytes, as SQS counts them: type and content."""
        return _bytes(self.data_type) + (len(self.content) if isinstance(self.content, bytes) else _bytes(self.content))

    def api(self) -> dict[str, Any]:
        """As the SQS API takes it."""
        key = "BinaryValue" if isinstance(self.content, bytes) else "StringValue"
        return {"DataType": self.data_type, key: self.content}

    def of_event(self) -> dict[str, str]:
        """As Lambda spells it in an event; `Message.of_lambda` reads it."""
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
    def of_lambda(cls, record: Mapping[str, Any]) -> "Message":
        """From a record of a Lambda event of an SQS event source mapping."""
        return cls(
            message_id=record["messageId"],
            body=record["body"],
            attributes={name: _of_lambda(value) for name, value in (record.get("messageAttributes") or {}).items()},
            system=record.get("attributes") or {},
            receipt_handle=record.get("receiptHandle", ""),
        )

    @classmethod
    def of_api(cls, received: Mapping[str, Any]) -> "Message":
        """From what `ReceiveMessage` returns."""
        return cls(
            message_id=received["MessageId"],
            body=received["Body"],
            attributes={name: _of_api(value) for name, value in (received.get("MessageAttributes") or {}).items()},
            system=dict(received.get("Attributes") or {}),
            receipt_handle=received.get("ReceiptHandle", ""),
        )

    @property
    def group_id(self) -> str | None:
        """The message group: of every FIFO message, and of a standard one sent to be shared fairly."""
        return self.system.get("MessageGroupId")

    @property
    def deduplication_id(self) -> str | None:
        """What a FIFO queue knew it by."""
        return self.system.get("MessageDeduplicationId")

    @property
    def receives(self) -> int:
        """How often it was received, this time included, as SQS counts it."""
        return int(self.system.get("ApproximateReceiveCount", 1))

    @property
    def sent_at_ms(self) -> int | None:
        """When SQS took it, in milliseconds since 1970."""
        sent = self.system.get("SentTimestamp")
        return int(sent) if sent is not None else None

    @property
    def sender_id(self) -> str:
        """Who sent it, as SQS says: a role's id and its session's name, or a user's id; "" where it wasn't asked."""
        return self.system.get("SenderId", "")

    @property
    def trace_header(self) -> str | None:
        """The X-Ray trace it belongs to."""
        return self.system.get(TRACE_HEADER)

    @property
    def size(self) -> int:
        """Bytes, as SQS counts them."""
        return size_of(self.body, self.attributes)


def emptied(message: Message) -> Message:
    """Give a message without what it holds: who keeps thousands, to give them back, needs no more of them."""
    return msgspec.structs.replace(message, body="", attributes={})


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that goes no further: it, why, and the ARN of the queue that it was in."""

    message: Message
    reason: str
    source: str


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be sent. A FIFO queue wants a group and a deduplication id, a standard one takes a group alone."""

    body: str
    attributes: Attributes = {}
    group_id: str | None = None
    deduplication_id: str | None = None
    trace_header: str | None = None

    @property
    def size(self) -> int:
        """Bytes, as SQS counts them: the trace header is free."""
        return size_of(self.body, self.attributes)

    def fields(self) -> dict[str, Any]:
        """Give what `SendMessage` takes, or an entry of `SendMessageBatch` beside its `Id`."""
        fields: dict[str, Any] = {"MessageBody": self.body}
        if self.attributes:
            fields["MessageAttributes"] = {name: value.api() for name, value in self.attributes.items()}
        if self.trace_header is not None:
            fields["MessageSystemAttributes"] = trace_attributes(self.trace_header)
        if self.group_id is not None:
            fields["MessageGroupId"] = self.group_id
        if self.deduplication_id is not None:
            fields["MessageDeduplicationId"] = self.deduplication_id
        return fields

    def entry(self, entry_id: str) -> dict[str, Any]:
        """Give an entry of `SendMessageBatch`."""
        return {"Id": entry_id} | self.fields()


def is_attribute_name(name: str) -> bool:
    """Whether SQS takes an attribute of this name."""
    return len(name) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(name) is not None


def trace_attributes(trace_header: str | None) -> dict[str, Any]:
    """Give the system attributes of a message to be sent; none without a trace."""
    return {} if trace_header is None else {TRACE_HEADER: Value("String", trace_header).api()}


def size_of(body: str, attributes: Attributes) -> int:
    """Bytes as SQS counts them: the body and each attribute's name, type and value."""
    size = _bytes(body)
    for name, value in attributes.items():
        content = value.content
        size += _bytes(name) + _bytes(value.data_type)
        size += len(content) if isinstance(content, bytes) else _bytes(content)
    return size


def _of_lambda(value: Mapping[str, Any]) -> Value:
    binary = value.get("binaryValue")
    if binary is not None:
        return Value(value["dataType"], base64.b64decode(binary))
    return Value(value["dataType"], value.get("stringValue") or "")


def _of_api(value: Mapping[str, Any]) -> Value:
    binary = value.get("BinaryValue")
    return Value(value["DataType"], bytes(binary) if binary is not None else value.get("StringValue") or "")


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", errors="surrogatepass"))
