"""Values of headers and arguments with their types, in memory and in JSON. Pure.

A value is a text, an integer, a float, a boolean, bytes, or void (None). Python takes `True`, `1` and `1.0` for equal;
headers don't, so their values are compared by `identity`. In JSON bytes are `{"base64": …}`.
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
    """Bytes, where they are stored or sent as JSON."""

    base64: bytes


StoredValue = str | int | float | bool | Base64 | None


def identity(value: TypedValue) -> Identity:
    """Make what two values share exactly when they are the same: integers by value; 2 is neither "2" nor 2.0."""
    return type(value), value


def have_same_values(one: Mapping[str, TypedValue | Base64], other: Mapping[str, TypedValue | Base64]) -> bool:
    """Whether two maps of headers, as they are or as they are stored, have the same names with the same values."""
    return one == other and all(type(value) is type(other[name]) for name, value in one.items())


def collect_headers(attributes: Attributes, typed: Headers) -> dict[str, TypedValue]:
    """Collect a message's headers: its attributes, and the `typed` ones, which win."""
    headers = {name: parse_attribute(value) for name, value in attributes.items()}
    headers.update(typed)
    return headers


def parse_attribute(value: Value) -> TypedValue:
    """Read an attribute as a header: a Number without a point or an exponent is an integer, any other a float."""
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
    """Make the values as a `Struct` keeps them."""
    return {name: Base64(base64=value) if isinstance(value, bytes) else value for name, value in values.items()}


def from_stored(values: Mapping[str, StoredValue]) -> dict[str, TypedValue]:
    """Read what `to_stored` made."""
    return {name: value.base64 if isinstance(value, Base64) else value for name, value in values.items()}


def to_json(values: Headers) -> dict[str, Any]:
    """Make the values as a JSON writer takes them."""
    made: dict[str, Any] = to_builtins(to_stored(values))
    return made


def from_json(values: Mapping[str, Any]) -> dict[str, TypedValue]:
    """Read what a JSON reader has made of `to_json`'s. Raises `Malformed` for a value that is no header's."""
    stored = convert(values, dict[str, StoredValue], of="headers")
    if not all(math.isfinite(value) for value in stored.values() if isinstance(value, float)):
        raise Malformed("headers: infinite, or no number")
    return from_stored(stored)
