"""Bodies that are notifications: attributes of an SNS envelope, objects of an S3 event. Pure.

A body that is no such notification has none of them: nothing here raises. The Spark source has envelopes of its own,
as it is used without this package.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from sluice.documents import read_json
from sluice.message import Value

MAX_OBJECTS = 10  # of one event whose metadata is asked for; S3 puts one into each


class S3Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object that an S3 event is about; the shell asks S3 for its metadata."""

    bucket: str
    key: str
    version_id: str | None = None


def envelope_attributes(body: str) -> Mapping[str, Value]:
    """Read the attributes of an SNS notification, `{Type, Value}` each; an attribute without both as text is left out.

    A FIFO topic's notification lacks the signature fields, so only what all have is asked for.
    """
    envelope = _envelope(body)
    if envelope is None:
        return {}
    attributes = envelope.get("MessageAttributes")
    if not isinstance(attributes, dict):
        return {}
    return {
        name: Value(value["Type"], value["Value"])
        for name, value in attributes.items()
        if isinstance(value, dict) and isinstance(value.get("Type"), str) and isinstance(value.get("Value"), str)
    }


def s3_objects(body: str, *, sns: bool) -> tuple[S3Object, ...]:
    """Read the objects of an S3 event notification, also within an SNS envelope where `sns`."""
    envelope = _envelope(body) if sns else None
    event = _object(envelope["Message"] if envelope is not None else body)
    records = event.get("Records") if event is not None else None
    found: list[S3Object] = []
    for record in records[:MAX_OBJECTS] if isinstance(records, list) else []:
        bucket = _at(record, "s3", "bucket", "name")
        key = _at(record, "s3", "object", "key")
        version_id = _at(record, "s3", "object", "versionId")
        if _at(record, "eventSource") == "aws:s3" and isinstance(bucket, str) and isinstance(key, str):
            version = version_id if isinstance(version_id, str) else None
            # Keys are form-encoded in events: a space is a plus.
            found.append(S3Object(bucket=bucket, key=unquote_plus(key), version_id=version))
    return tuple(found)


def _envelope(body: str) -> dict[str, Any] | None:
    # Most bodies are told apart without being decoded.
    if '"Notification"' not in body:
        return None
    envelope = _object(body)
    if envelope is None or envelope.get("Type") != "Notification":
        return None
    if not isinstance(envelope.get("TopicArn"), str) or not isinstance(envelope.get("Message"), str):
        return None
    return envelope


def _object(text: str) -> dict[str, Any] | None:
    try:
        decoded = read_json(text)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _at(decoded: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(decoded, dict):
            return None
        decoded = decoded.get(name)
    return decoded
