"""What a page asks for, read at the edge: the topics that it follows, and the fields of its forms. Pure.

For a form it raises `BadRequest`, whose text says which field is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from sluice.documents import read_json
from sluice.errors import BadRequest, Malformed

MAX_TEXTS = 1_000
MAX_TOPIC = 1_000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A reading by its name, the site by its place among those watched, and what the page asks for."""

    reading: str
    site: int = 0
    query: Mapping[str, str] = field(default_factory=dict, hash=False)
    text: str = ""  # as the page spells it, by which it knows its readings

    @classmethod
    def parse(cls, text: str) -> "Topic":
        """Read `READING@SITE`, and what may follow a question mark. Raises `Malformed`."""
        named, _, query = text.partition("?")
        reading, at, site = named.partition("@")
        if len(text) > MAX_TOPIC or not at or not (site.isascii() and site.isdigit()):
            raise Malformed(f"no topic: {text[:MAX_TOPIC]!r}")
        return cls(reading=reading, site=int(site), query=dict(parse_qsl(query)), text=text)

    def __str__(self) -> str:
        return self.text or f"{self.reading}@{self.site}"


class Form(msgspec.Struct, frozen=True):
    """What a page posts: the site, by its place among those watched, and fields by their names."""

    site: int
    fields: dict[str, Any] = {}


def form_of(body: bytes) -> Form:
    """Read a form's JSON."""
    try:
        # Not msgspec's own reader, which refuses half a character.
        return msgspec.convert(read_json(body), Form)
    except (ValueError, msgspec.ValidationError) as error:
        raise BadRequest(f"no form: {error}") from None


def text_in(fields: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """Read a text, which has to be there unless it has a default."""
    value = fields.get(name, default)
    if not isinstance(value, str) or (not value and default is None):
        raise BadRequest(f"{name}: a text is needed")
    return value


def texts_in(fields: Mapping[str, Any], name: str) -> Sequence[str]:
    """Read any number of texts; none where it isn't there."""
    value = fields.get(name, [])
    if not isinstance(value, list) or len(value) > MAX_TEXTS or not all(isinstance(each, str) for each in value):
        raise BadRequest(f"{name}: up to {MAX_TEXTS} texts are needed")
    return value


def number_in(fields: Mapping[str, Any], name: str, *, least: int, most: int, default: int) -> int:
    """Read a whole number within its limits."""
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name}: a number from {least} to {most} is needed")
    return value
