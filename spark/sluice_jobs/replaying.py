"""A message as it goes back to an exchange's ingress. Pure: what Spark reads and sends is `replay`'s.

Exchange and key stand in attribute `x-qpid` (`sluice/federation/metadata.py`), of which headers, overflow and id are
kept. Trace and times are left out: a message that was here before would be turned away, one with a TTL be dead. Most
ingresses forget an id that a publisher claims, so it is told to receivers in an attribute of its own too.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice_jobs.landing_names import METADATA_ATTRIBUTE

ID_ATTRIBUTE = "sluice-replayed"
_KEPT = ("headers", "overflow", "id")
_MAX_ATTRIBUTES = 10  # of SQS
_GROUP_CHARACTERS = 32

Attribute = Mapping[str, Any]  # `type`, `string`, `binary`: the source's struct


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What the sink sends beside the body."""

    attributes: Mapping[str, Attribute]
    group_id: str
    deduplication_id: str


def replayed(row: Mapping[str, Any], exchange: str) -> Replayed:
    """`row`: `message_id`, `attributes` and `message_group_id` as received, `routing_key` and `origin_id` as landed.

    The id is the message's at its first exchange, else SQS's: the same at every replay.
    """
    attributes = dict(row["attributes"] or {})
    claimed = _claimed(attributes.pop(METADATA_ATTRIBUTE, None))
    known_as = row["origin_id"] or row["message_id"]
    key = row["routing_key"] or ""
    sealed = {"exchange": exchange, "key": key, **{name: claimed[name] for name in _KEPT if name in claimed}}
    attributes[ID_ATTRIBUTE] = {"type": "String", "string": known_as, "binary": None}
    inside = _overflow(attributes)
    if inside:
        sealed["overflow"] = {**sealed.get("overflow", {}), **{name: _packed(attributes.pop(name)) for name in inside}}
    sealed_text = json.dumps(sealed, separators=(",", ":"))
    return Replayed(
        attributes={**attributes, METADATA_ATTRIBUTE: {"type": "String", "string": sealed_text, "binary": None}},
        group_id=row["message_group_id"]
        or hashlib.sha256(f"{exchange}\0{key}".encode()).hexdigest()[:_GROUP_CHARACTERS],
        deduplication_id=hashlib.sha256(f"{exchange}\0{known_as}".encode()).hexdigest(),
    )


def _overflow(attributes: Mapping[str, Attribute]) -> list[str]:
    """Names of those that find no room beside `x-qpid`: the id's first, which is short, then by name."""
    names = sorted(attributes, key=lambda name: (name != ID_ATTRIBUTE, name))
    return names[: max(0, len(names) - (_MAX_ATTRIBUTES - 1))]


def _packed(value: Attribute) -> list[Any]:
    binary = value["binary"]
    return [value["type"], value["string"] if binary is None else {"base64": base64.b64encode(binary).decode()}]


def _claimed(sealed: Attribute | None) -> Mapping[str, Any]:
    """What the message's own metadata say; nothing where they can't be read, which only a table made by others has."""
    try:
        found = json.loads((sealed or {}).get("string") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
