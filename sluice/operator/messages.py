"""Reads messages from files, and typed values and attributes from `NAME=VALUE` options."""

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
from sluice.federation.matching.typed_values import TypedValue, from_json
from sluice.message import Message, Value
from sluice.operator.documents import BadFile, read_document
from sluice.splitting.filters.texts import Envelope, FilterInput

# `aws sqs receive-message` prints a list `Messages`. A Lambda event has a list `Records`. Case is ignored.
MESSAGE_LISTS = ("messages", "records")


class _AttributeValue(Struct, frozen=True, rename="camel"):
    data_type: str
    string_value: str | None = None
    binary_value: bytes | None = None  # The file has this value encoded as Base64.

    def value(self) -> Value:
        content = self.string_value or "" if self.binary_value is None else self.binary_value
        return Value(self.data_type, content)


class _MessageInput(Struct, frozen=True, rename="camel"):
    """The fields of a message that filters use. Names are capitalized in the SQS API, but not in Lambda events."""

    body: str
    message_id: str = ""
    attributes: dict[str, str] = {}
    message_attributes: dict[str, dict[str, Any]] = {}
    s3_metadata: dict[str, str] | None = None


def read_filter_input(file: Path, *, envelope: Envelope) -> FilterInput:
    """Read a message from a file, with optional metadata of an S3 object, to test filters on. Raises `BadFile`."""
    document = _decapitalize_names(read_document(file))
    for list_name in MESSAGE_LISTS:
        messages = document.get(list_name)
        if isinstance(messages, list):
            if len(messages) != 1 or not isinstance(messages[0], dict):
                raise BadFile(file, f"has {len(messages)} messages, not one")
            document = _decapitalize_names(messages[0])
    try:
        fields = convert(document, _MessageInput, of=str(file))
        attributes = {
            name: convert(_decapitalize_names(value), _AttributeValue, of=f"attribute {name}").value()
            for name, value in fields.message_attributes.items()
        }
    except Malformed as error:
        raise BadFile(file, str(error).removeprefix(f"{file}: ")) from error
    message = Message(message_id=fields.message_id, body=fields.body, attributes=attributes, system=fields.attributes)
    # The metadata of the S3 object is in the file, so that no request to S3 is needed.
    filter_input = FilterInput.from_message(message, envelope=replace(envelope, s3_event=False))
    return filter_input if fields.s3_metadata is None else filter_input.with_metadata(fields.s3_metadata)


def _decapitalize_names(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name[:1].lower() + name[1:] if isinstance(name, str) else name: value for name, value in fields.items()}


ATTRIBUTE_TYPES = ("String", "Number", "Binary")


def parse_typed_values(options: Iterable[str], *, option: str) -> dict[str, TypedValue]:
    """Parse `NAME=VALUE` options. A JSON scalar keeps its type, other values are strings, `NAME` alone means None.

    For example `n=2` is an integer, `n="2"` with quotes a string, `n={"base64": "AA=="}` bytes. Raises `BadParameter`.
    """
    values: dict[str, TypedValue] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not name or name in values:
            raise typer.BadParameter(f"{option} {text!r}: {'given twice' if name else 'is NAME=VALUE'}")
        try:
            values[name] = from_json({name: read_json(value)})[name] if equals else None
        except (ValueError, Malformed):
            values[name] = value
    return values


def parse_attributes(options: Iterable[str], *, option: str) -> dict[str, Value]:
    """Parse message attributes from `NAME[:TYPE]=VALUE`. Binary values are Base64-encoded. Raises `BadParameter`."""
    values: dict[str, Value] = {}
    for text in options:
        declared, equals, value = text.partition("=")
        name, _, data_type = declared.partition(":")
        if not name or not equals or name in values:
            reason = "given twice" if name in values else "is NAME[:TYPE]=VALUE"
            raise typer.BadParameter(f"{option} {text!r}: {reason}")
        data_type = data_type or "String"
        kind = data_type.partition(".")[0]
        if kind not in ATTRIBUTE_TYPES:
            raise typer.BadParameter(f"{option} {text!r}: {data_type!r} is none of {', '.join(ATTRIBUTE_TYPES)}")
        try:
            content = base64.b64decode(value, validate=True) if kind == "Binary" else value
        except binascii.Error as error:
            raise typer.BadParameter(f"{option} {text!r}: no base64") from error
        values[name] = Value(data_type, content)
    return values
