"""MD5 of what SQS says it sent, against what arrived: bodies and the attributes that senders gave. Pure.

TLS already keeps what is under way from being changed; this is for who must show that nothing between did, a proxy or
an emulator say. How attributes are counted:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

import struct
from base64 import b64decode
from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any

TEXT, BINARY = b"\x01", b"\x02"


def is_intact(message: Mapping[str, Any]) -> bool:
    """Whether a message, as SQS's JSON has it, is what its digests say; one that has none is."""
    body, attributes = message.get("MD5OfBody"), message.get("MD5OfMessageAttributes")
    if body is not None and body != _digest(message.get("Body", "").encode()):
        return False
    return attributes is None or attributes == digest_of(message.get("MessageAttributes") or {})


def digest_of(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest attributes by their names' order: each name, type and value with its length before it."""
    return _digest(b"".join(part for name in sorted(attributes) for part in _parts(name, attributes[name])))


def _parts(name: str, value: Mapping[str, Any]) -> Iterator[bytes]:
    binary = value.get("BinaryValue")
    for text in (name.encode(), str(value.get("DataType", "")).encode()):
        yield _counted(text)
    if binary is not None:
        yield BINARY + _counted(b64decode(binary))
    else:
        yield TEXT + _counted(str(value.get("StringValue", "")).encode())


def _counted(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _digest(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()
