"""The registry's values as JSON texts and back. Pure. The format has a number, so that an older program stops short."""

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from sluice.splitting.filters.files import Filter, Mode, QueueFilter, QueueFilters
from sluice.splitting.sessions.lifecycle import Phase, QueueState, Session, Split, Status, TemporaryQueue

FORMAT = 1


class UnknownFormat(ValueError):
    """Written by a newer version; a ValueError, as for any text that isn't a registry's."""


def encode(value: Split | Session | TemporaryQueue) -> str:
    """One value as text; equal values give equal texts."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return json.dumps({"format": FORMAT} | fields, default=_plain, sort_keys=True)


def decode_split(text: str) -> Split:
    """Raises ValueError, as all of these."""
    fields = _fields(text)
    return Split(**fields | {"phase": Phase(fields["phase"])})


def decode_session(text: str) -> Session:
    """See `decode_split`."""
    fields = _fields(text)
    filters = decode_filters(fields["filters"])
    return Session(**fields | {"filters": filters, "status": Status(fields["status"])})


def decode_queue(text: str) -> TemporaryQueue:
    """See `decode_split`."""
    fields = _fields(text)
    return TemporaryQueue(**fields | {"state": QueueState(fields["state"])})


def encode_filters(filters: QueueFilters) -> dict[str, Any]:
    """Filters as a JSON object, for an event of the control function."""
    encoded: dict[str, Any] = json.loads(json.dumps(dict(filters), default=_plain))
    return encoded


def decode_filters(encoded: Mapping[str, Any]) -> dict[str, QueueFilter]:
    """Filters of such an object, which were checked before they were encoded."""
    return {queue_id: _queue_filter(fields) for queue_id, fields in encoded.items()}


def _queue_filter(fields: Mapping[str, Any]) -> QueueFilter:
    attributes = tuple((name, pattern) for name, pattern in fields["filter"]["attributes"])
    return QueueFilter(filter=Filter(attributes=attributes, jq=fields["filter"]["jq"]), mode=Mode(fields["mode"]))


def _fields(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(text)
    written = fields.pop("format", None)
    if written != FORMAT:
        raise UnknownFormat(f"the registry is of format {written}, this program reads {FORMAT}")
    return fields


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} isn't the registry's")
