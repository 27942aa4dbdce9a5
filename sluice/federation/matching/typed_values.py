"""Values of headers and arguments with their types, in memory and in JSON. Pure.

A value is text, an integer, a float, a boolean, bytes, or void (None). In Python `True`, `1` and `1.0` are equal, but
as headers these values differ. So values are compared by `identity`. In JSON, bytes are `{"base64": …}`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from sluice.codec import Struct, convert
from sluice.errors import Malformed
from sluice.message import Attributes, Value

TypedValue = str | int | float | bool | bytes | None
Headers = Mapping[str, TypedValue]
Identity = tuple[type, TypedValue]

_INTEGER = re.compile(r"[+-]?[0-9]{1,128}")


class Base64(Struct, frozen=True, kw_only=True):
    """Bytes in the form in which they are stored and encoded as JSON."""

    base64: bytes


StoredValue = str | int | float | bool | Base64 | None


def identity(value: TypedValue) -> Identity:
    """Return a key that only headers of the same type and value have in common: 2 is neither "2" nor 2.0."""
    return type(value), value


def have_same_values(headers: Mapping[str, TypedValue | Base64], others: Mapping[str, TypedValue | Base64]) -> bool:
    """Whether two mappings have the same headers. The values may be in memory's form or in the stored form."""
    return headers == others and all(type(value) is type(others[name]) for name, value in headers.items())


def collect_headers(attributes: Attributes, typed: Headers) -> dict[str, TypedValue]:
    """Return a message's headers: its attributes, and the `typed` headers, which replace equally named ones."""
    headers = {name: parse_attribute(value) for name, value in attributes.items()}
    headers.update(typed)
    return headers


def parse_attribute(value: Value) -> TypedValue:
    """Convert an attribute to a header. A Number with a point or exponent is a float, any other an integer."""
    content = value.content
    if isinstance(content, bytes) or not value.data_type.startswith("Number"):
        return content
    text = content.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def to_stored(values: Headers) -> dict[str, StoredValue]:
    """Convert values from memory to the stored form."""
    return {name: Base64(base64=value) if isinstance(value, bytes) else value for name, value in values.items()}


def from_stored(values: Mapping[str, StoredValue]) -> dict[str, TypedValue]:
    """Convert values from the stored form to the form in memory."""
    return {name: value.base64 if isinstance(value, Base64) else value for name, value in values.items()}


def to_json(values: Headers) -> dict[str, Any]:
    """Convert values to plain values for a JSON encoder."""
    made: dict[str, Any] = to_builtins(to_stored(values))
    return made


def from_json(values: Mapping[str, Any]) -> dict[str, TypedValue]:
    """Convert plain values from a JSON decoder. Raises `Malformed` for a value that a header can't have."""
    stored = convert(values, dict[str, StoredValue], of="headers")
    if not all(math.isfinite(value) for value in stored.values() if isinstance(value, float)):
        raise Malformed("headers: infinite, or no number")
    return from_stored(stored)
