"""Values of headers and arguments with their types, in memory and in JSON. Pure.

A value is a text, an integer, a float, a boolean, bytes, or void (None). Python takes `True`, `1` and `1.0` for equal;
headers don't, so their values are compared by `identity`.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any

from sluice.errors import Malformed
from sluice.message import Attributes, Value

TypedValue = str | int | float | bool | bytes | None
Headers = Mapping[str, TypedValue]
Identity = tuple[type, TypedValue]

_BYTES = "base64"
_INTEGER = re.compile(r"[+-]?[0-9]{1,128}")


def identity(value: TypedValue) -> Identity:
    """What two values share exactly when they are the same: integers by value, and 2 is neither "2" nor 2.0."""
    return type(value), value


def same(one: Headers, other: Headers) -> bool:
    """Whether two maps have the same names with the same values."""
    return one.keys() == other.keys() and all(identity(value) == identity(other[name]) for name, value in one.items())


def headers_of(attributes: Attributes, typed: Headers) -> dict[str, TypedValue]:
    """A message's headers: its attributes, and the `typed` ones, which win."""
    found = {name: of_attribute(value) for name, value in attributes.items()}
    found.update(typed)
    return found


def of_attribute(value: Value) -> TypedValue:
    """An attribute as a header: a Number without a point or an exponent is an integer, any other a float."""
    content = value.content
    if isinstance(content, bytes) or not value.data_type.startswith("Number"):
        return content
    return _number(content)


def _number(text: str) -> TypedValue:
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def to_json(values: Headers) -> dict[str, Any]:
    """As JSON has it: bytes are `{"base64": …}`."""
    return {name: _to_json(value) for name, value in values.items()}


def _to_json(value: TypedValue) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def of_json(values: Mapping[str, Any]) -> dict[str, TypedValue]:
    """What `to_json` wrote. Raises `Malformed` for a value that is no header's."""
    return {name: _of_json(value) for name, value in values.items()}


def _of_json(value: Any) -> TypedValue:
    if isinstance(value, dict) and value.keys() == {_BYTES}:
        return decode_bytes(value[_BYTES])
    if value is not None and not isinstance(value, str | int | float):
        raise Malformed("a header has a value of no type of its own")
    if isinstance(value, float) and not math.isfinite(value):
        raise Malformed("a header is no number")
    return value


def decode_bytes(text: object) -> bytes:
    """Bytes from base64. Raises `Malformed`."""
    if not isinstance(text, str):
        raise Malformed("bytes that are not base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("bytes that are not base64") from None
