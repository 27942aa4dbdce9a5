"""`NAME=VALUE` on the command line, with types: for arguments of bindings, headers and attributes of messages."""

import base64
import binascii
from collections.abc import Iterable

import typer

from sluice.documents import read_json
from sluice.errors import Malformed
from sluice.federation.matching.typed_values import TypedValue, of_json
from sluice.message import Value

TYPES = ("String", "Number", "Binary")


def typed_values(options: Iterable[str], *, option: str) -> dict[str, TypedValue]:
    """Read values by name: what is a JSON scalar has its type, everything else is text; `NAME` alone is void.

    So `n=2` is an integer, `n="2"` with its quotes a text, `n={"base64": "AA=="}` are bytes. Raises `BadParameter`.
    """
    found: dict[str, TypedValue] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not name or name in found:
            raise typer.BadParameter(f"{option} {text!r}: {'given twice' if name else 'is NAME=VALUE'}")
        try:
            found[name] = of_json({name: read_json(value)})[name] if equals else None
        except (ValueError, Malformed):
            found[name] = value
    return found


def attributes(options: Iterable[str], *, option: str) -> dict[str, Value]:
    """Read SQS's attributes from `NAME[:TYPE]=VALUE`; a Binary's value is base64. Raises `BadParameter`."""
    found: dict[str, Value] = {}
    for text in options:
        declared, equals, value = text.partition("=")
        name, _, data_type = declared.partition(":")
        if not name or not equals or name in found:
            reason = "given twice" if name in found else "is NAME[:TYPE]=VALUE"
            raise typer.BadParameter(f"{option} {text!r}: {reason}")
        data_type = data_type or "String"
        kind = data_type.partition(".")[0]
        if kind not in TYPES:
            raise typer.BadParameter(f"{option} {text!r}: {data_type!r} is none of {', '.join(TYPES)}")
        try:
            content = base64.b64decode(value, validate=True) if kind == "Binary" else value
        except binascii.Error as error:
            raise typer.BadParameter(f"{option} {text!r}: no base64") from error
        found[name] = Value(data_type, content)
    return found
