"""A message as it goes back to an exchange's ingress. Pure: what Spark reads and sends is `replay`'s.

Of the metadata that it carries, headers and id are kept, and the attributes that found no room beside them. Trace and
times are left out: a message that was here before would be turned away, one with a TTL be dead. Most ingresses forget
an id that a publisher claims, so it is told to receivers in an attribute of its own too.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import Malformed
from sluice.federation.messages.metadata import ATTRIBUTE, Metadata, Opened, open_attributes, seal
from sluice.message import Attributes, Value

ID_ATTRIBUTE = "sluice-replayed"
_GROUP_CHARACTERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the sink sends beside the body. An attribute has `type`, `string`, `binary`, as the source's struct."""

    attributes: Mapping[str, Mapping[str, Any]]
    group_id: str
    deduplication_id: str


def replayed(row: Mapping[str, Any], exchange: str) -> Replayed:
    """Make the message anew. Raises TooLarge where it has no room for metadata.

    `row`: `message_id`, `body`, `attributes` and `message_group_id` as received, `routing_key` and `origin_id` as
    landed. The id is the message's at its first exchange, else SQS's: the same at every replay.
    """
    opened = _opened({name: _value(each) for name, each in (row["attributes"] or {}).items()})
    known_as, key, claimed = row["origin_id"] or row["message_id"], row["routing_key"] or "", opened.metadata
    metadata = Metadata(
        exchange=exchange,
        key=key,
        message_id=claimed.message_id if claimed else None,
        headers=claimed.headers if claimed else {},
    )
    sealed = seal(row["body"], {**opened.attributes, ID_ATTRIBUTE: Value("String", known_as)}, metadata)
    group_id = row["message_group_id"] or hashlib.sha256(f"{exchange}\0{key}".encode()).hexdigest()[:_GROUP_CHARACTERS]
    return Replayed(
        attributes={name: _struct(value) for name, value in sealed.items()},
        group_id=group_id,
        deduplication_id=hashlib.sha256(f"{exchange}\0{known_as}".encode()).hexdigest(),
    )


def _opened(attributes: Attributes) -> Opened:
    """Without metadata where they can't be read, which only a table made by others has."""
    try:
        return open_attributes(attributes)
    except Malformed:
        user = {name: value for name, value in attributes.items() if name != ATTRIBUTE}
        return Opened(attributes=user, metadata=None)


def _value(struct: Mapping[str, Any]) -> Value:
    binary = struct["binary"]
    return Value(struct["type"], struct["string"] if binary is None else bytes(binary))


def _struct(value: Value) -> Mapping[str, Any]:
    binary = value.content if isinstance(value.content, bytes) else None
    return {"type": value.data_type, "string": value.text, "binary": binary}
