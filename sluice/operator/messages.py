"""Messages as a person writes them: in a file, or as `NAME=VALUE` with types."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from sluice.codec import convert
from sluice.documents import read_json
from sluice.errors import Malformed
from sluice.federation.matching.typed_values import TypedValue, of_json
from sluice.message import Message, Value
from sluice.operator.documents import BadFile, document_of_file
from sluice.splitting.filters.texts import Envelope, FilterInput

HOLDERS = ("messages", "records")  # of one message: `aws sqs receive-message`, a function's event


class _Value(Struct, frozen=True, rename="camel"):
    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None  # in Base64

    def value(self) -> Value:
        content = self.string_value or "" if self.binary_value is None else self.binary_value
        return Value(self.data_type, content)


class _Message(Struct, frozen=True, rename="camel"):
    """What counts of a message to a filter. The API writes names with a capital first letter, events don't."""

    body: str
    message_id: str = ""
    attributes: dict[str, str] = {}
    message_attributes: dict[str, dict[str, Any]] = {}
    s3_metadata: dict[str, str] | None = None


def sight_of_file(file: Path, *, envelope: Envelope) -> FilterInput:
    """Read the file's message as filters see it, also with the `S3Metadata` that it is to have. Raises `BadFile`."""
    return sight_of(document_of_file(file), file, envelope=envelope)


def sight_of(document: Mapping[Any, Any], file: Path, *, envelope: Envelope) -> FilterInput:
    """Take a file's document for a message, as `sight_of_file` does."""
    document = _lowered(document)
    for holder in HOLDERS:
        held = document.get(holder)
        if isinstance(held, list):
            if len(held) != 1 or not isinstance(held[0], dict):
                raise BadFile(file, f"has {len(held)} messages, not one")
            document = _lowered(held[0])
    try:
        read = convert(document, _Message, of=str(file))
        attributes = {
            name: convert(_lowered(value), _Value, of=f"attribute {name}").value()
            for name, value in read.message_attributes.items()
        }
    except Malformed as error:
        raise BadFile(file, str(error).removeprefix(f"{file}: ")) from error
    message = Message(message_id=read.message_id, body=read.body, attributes=attributes, system=read.attributes)
    sight = FilterInput.of(message, envelope=replace(envelope, s3_event=False))  # what S3 would say, the file says
    return sight if read.s3_metadata is None else sight.with_metadata(read.s3_metadata)


def _lowered(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name[:1].lower() + name[1:] if isinstance(name, str) else name: value for name, value in fields.items()}


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
