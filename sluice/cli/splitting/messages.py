"""A message in a file: as the SQS API and its command line show it, or as a function's event has it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sluice.cli.documents import BadFile, document_of_file
from sluice.codec import convert
from sluice.errors import Malformed
from sluice.message import Message, Value
from sluice.splitting.filters.texts import Sight

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


def sight_of_file(file: Path, *, sns: bool) -> Sight:
    """Read the file's message as filters see it, also with the `S3Metadata` that it is to have. Raises `BadFile`."""
    return sight_of(document_of_file(file), file, sns=sns)


def sight_of(document: Mapping[Any, Any], file: Path, *, sns: bool) -> Sight:
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
    sight = Sight.of(message, sns=sns)
    return sight if read.s3_metadata is None else sight.with_metadata(read.s3_metadata)


def _lowered(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name[:1].lower() + name[1:] if isinstance(name, str) else name: value for name, value in fields.items()}
