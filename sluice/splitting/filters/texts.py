"""A message in the form that filters use: its attributes' texts by folded name, their lines, and its jq document. Pure.

Names match in any case, so several attributes can have one name (`Author` and `author`, or an attribute of the message
and one of its envelope). Any of these attributes can satisfy a pattern. A line is `name: value`, with the name as it
was sent. Binary attributes have no text and no line. The body may be a notification: attributes of an SNS envelope
count as well, and objects of an S3 event have metadata. Other bodies have neither, and raise no error. The Spark source
parses envelopes itself, because it doesn't need this package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from sluice.documents import read_json
from sluice.message import Message, Value
from sluice.splitting.filters import jq

MAX_OBJECTS = 10  # Metadata is fetched for at most this many objects of an S3 event; S3 sends one object per event.
Texts = Mapping[str, tuple[str, ...]]  # A message's texts by case-folded attribute name.


class S3Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object that an S3 event is about. The splitter fetches the object's metadata."""

    bucket: str
    key: str
    version_id: str | None = None


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of a split queue's bodies: SNS notifications, S3 events, or S3 events in SNS notifications.

    A queue's parameters (`SplitConfig`) and its view (`QueueView`) inherit these fields.
    """

    sns: bool = False
    s3_event: bool = False

    def attributes(self, message: Message) -> Sequence[Mapping[str, Value]]:
        """Return a message's own attributes, and those of its envelope."""
        return (message.attributes, read_notification_attributes(message.body)) if self.sns else (message.attributes,)

    def objects(self, body: str) -> tuple[S3Object, ...]:
        """Return the S3 objects in a body that is an S3 event notification. Any other body has no objects."""
        notification = _parse_notification(body) if self.sns else None
        event = _parse_object(notification["Message"] if notification is not None else body)
        records = event.get("Records") if event is not None else None
        objects: list[S3Object] = []
        for record in records[:MAX_OBJECTS] if isinstance(records, list) else []:
            bucket = _get_nested(record, "s3", "bucket", "name")
            key = _get_nested(record, "s3", "object", "key")
            version_id = _get_nested(record, "s3", "object", "versionId")
            if _get_nested(record, "eventSource") == "aws:s3" and isinstance(bucket, str) and isinstance(key, str):
                version = version_id if isinstance(version_id, str) else None
                # Keys in events are form-encoded, with a plus sign for a space.
                objects.append(S3Object(bucket=bucket, key=unquote_plus(key), version_id=version))
        return tuple(objects)


NO_ENVELOPE = Envelope()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterInput:
    """A message, prepared once for the filters of all sessions.

    `awaits_metadata`: the metadata of the message's S3 objects was not fetched yet.
    """

    message: Message
    texts: Texts
    s3_metadata: Mapping[str, str] | None = None
    awaits_metadata: bool = False
    _attributes: Sequence[Mapping[str, Value]] = field(default=(), repr=False, compare=False)
    _lines: list[str] = field(default_factory=list, repr=False, compare=False)
    _documents: dict[bool, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_message(cls, message: Message, *, envelope: Envelope = NO_ENVELOPE) -> "FilterInput":
        """Prepare a message of a split queue. `envelope` is the envelope of the queue's messages."""
        texts: dict[str, tuple[str, ...]] = {}
        attribute_sets = envelope.attributes(message)
        for attributes in attribute_sets:
            for name, value in attributes.items():
                if (text := _get_searchable_text(value)) is not None:
                    folded = fold_name(name)
                    texts[folded] = (*texts[folded], text) if folded in texts else (text,)
        return cls(message=message, texts=texts, awaits_metadata=envelope.s3_event, _attributes=attribute_sets)

    def lines(self) -> Sequence[str]:
        """Return a line `name: value` for each attribute. The lines are built when the first filter needs them."""
        if not self._lines:
            for attributes in self._attributes:
                texts = ((name, _get_searchable_text(value)) for name, value in attributes.items())
                self._lines.extend(f"{name}: {text}" for name, text in texts if text is not None)
        return self._lines

    def with_metadata(self, found: Mapping[str, str]) -> "FilterInput":
        """Return a copy of the message with the metadata of its S3 objects."""
        return replace(self, s3_metadata=found, awaits_metadata=False, _documents={})

    def document(self, program: str) -> str:
        """Return the input document for a jq program, built when the first program needs it."""
        metadata = jq.mentions_metadata(program)
        if metadata not in self._documents:
            s3_metadata = self.s3_metadata if metadata else None
            self._documents[metadata] = jq.build_document(self.message, s3_metadata=s3_metadata)
        return self._documents[metadata]


def _get_searchable_text(value: Value) -> str | None:
    return None if value.data_type.startswith("Binary") else value.text


def fold_name(name: str) -> str:
    """Return an attribute's name in the form in which names are compared."""
    return name.casefold()


def read_notification_attributes(body: str) -> Mapping[str, Value]:
    """Return the attributes of an SNS notification. Attributes without a `Type` and a `Value` as text are omitted.

    Only fields that all notifications have are required: those of FIFO topics have no signature.
    """
    attributes = (_parse_notification(body) or {}).get("MessageAttributes")
    if not isinstance(attributes, dict):
        return {}
    return {
        name: Value(value["Type"], value["Value"])
        for name, value in attributes.items()
        if isinstance(value, dict) and isinstance(value.get("Type"), str) and isinstance(value.get("Value"), str)
    }


def _parse_notification(body: str) -> dict[str, Any] | None:
    # This quick check excludes most bodies without decoding.
    if '"Notification"' not in body:
        return None
    notification = _parse_object(body)
    if notification is None or notification.get("Type") != "Notification":
        return None
    if not isinstance(notification.get("TopicArn"), str) or not isinstance(notification.get("Message"), str):
        return None
    return notification


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        decoded = read_json(text)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _get_nested(decoded: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(decoded, dict):
            return None
        decoded = decoded.get(name)
    return decoded
