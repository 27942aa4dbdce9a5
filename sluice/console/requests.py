"""Parses the topics that a web page follows, and the fields of the page's forms, without side effects.

Errors in forms raise `BadRequest`, whose text names the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from sluice.documents import read_json
from sluice.errors import BadRequest, Malformed

MAX_TEXTS = 1_000
MAX_TOPIC = 1_000  # A topic has at most this number of characters.


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """The data that a page follows: the name of a reading, the index of the watched site, and parameters."""

    reading: str
    site_index: int = 0
    query: Mapping[str, str] = field(default_factory=dict, hash=False)
    text: str = ""  # Events contain this text exactly as the page sent it, to identify the topic.

    @classmethod
    def parse(cls, text: str) -> "Topic":
        """Parse a topic `READING@SITE` or `READING@SITE?QUERY`, with the index of the site. Raises `Malformed`."""
        named, _, query = text.partition("?")
        reading, at, site = named.partition("@")
        if len(text) > MAX_TOPIC or not at or not (site.isascii() and site.isdigit()):
            raise Malformed(f"not a topic: {text[:MAX_TOPIC]!r}")
        return cls(reading=reading, site_index=int(site), query=dict(parse_qsl(query)), text=text)

    def __str__(self) -> str:
        return self.text or f"{self.reading}@{self.site_index}"


class PostedForm(msgspec.Struct, frozen=True):
    """A form that a page has posted: the index of the watched site, and the form's fields by name."""

    site: int
    fields: dict[str, Any] = {}


def parse_form(body: bytes) -> PostedForm:
    """Parse a form from JSON. Raises `BadRequest`."""
    try:
        # This reader is used because the JSON decoder of msgspec refuses lone surrogates.
        return msgspec.convert(read_json(body), PostedForm)
    except (ValueError, msgspec.ValidationError) as error:
        raise BadRequest(f"not a form: {error}") from None


def get_text_field(fields: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """Return a form's text field, which is required unless there is a default. Raises `BadRequest`."""
    value = fields.get(name, default)
    if not isinstance(value, str) or (not value and default is None):
        raise BadRequest(f"{name}: a text is needed")
    return value


def get_text_list_field(fields: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return a form's field that is a list of texts; empty if the field is missing. Raises `BadRequest`."""
    value = fields.get(name, [])
    if not isinstance(value, list) or len(value) > MAX_TEXTS or not all(isinstance(text, str) for text in value):
        raise BadRequest(f"{name}: up to {MAX_TEXTS} texts are needed")
    return value


def get_number_field(fields: Mapping[str, Any], name: str, *, least: int, most: int, default: int) -> int:
    """Return a form's integer field. Raises `BadRequest` if the number is not from `least` to `most`."""
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name}: a number from {least} to {most} is needed")
    return value
