"""`NAME=VALUE` on the command line, with types: for arguments of bindings, headers and attributes of messages."""

import base64
import binascii
import json
from collections.abc import Iterable

import typer

from sluice.errors import Malformed
from sluice.federation.matching.typed_values import TypedValue, of_json
from sluice.message import Value

TYPES = ("String", "Number", "Binary")


def typed_values(options: Iterable[str], *, option: str) -> dict[str, TypedValue]:
    """Values by name: what is a JSON scalar has its type, everything else is text; `NAME` alone is void.

    So `n=2` is an integer, `n="2"` with its quotes a text, `n={"base64": "AA=="}` are bytes.
    """
    found: dict[str, TypedValue] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not name or name in found:
            raise typer.BadParameter(f"{option} {text!r}: {'given twice' if name else 'is NAME=VALUE'}")
        found[name] = _typed(value) if equals else None
    return found


def _typed(text: str) -> TypedValue:
    try:
        return of_json({"": json.loads(text, parse_constant=_no_json)})[""]
    except (ValueError, RecursionError, Malformed):
        return text


def _no_json(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def attributes(options: Iterable[str], *, option: str) -> dict[str, Value]:
    """SQS's attributes from `NAME[:TYPE]=VALUE`; a Binary's value is base64."""
    found: dict[str, Value] = {}
    for text in options:
        declared, equals, value = text.partition("=")
        name, _, data_type = declared.partition(":")
        if not name or not equals or name in found:
            reason = "given twice" if name in found else "is NAME[:TYPE]=VALUE"
            raise typer.BadParameter(f"{option} {text!r}: {reason}")
        found[name] = _attribute(data_type or "String", value, place=f"{option} {text!r}")
    return found


def _attribute(data_type: str, text: str, *, place: str) -> Value:
    kind = data_type.partition(".")[0]
    if kind not in TYPES:
        raise typer.BadParameter(f"{place}: {data_type!r} is none of {', '.join(TYPES)}")
    if kind != "Binary":
        return Value(data_type, text)
    try:
        return Value(data_type, base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise typer.BadParameter(f"{place}: no base64") from error
