"""What a page's form says, read at the edge. Pure. Raises `BadRequest`, whose text says which field is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sluice.documents import read_json
from sluice.errors import BadRequest

MAX_TEXTS = 1_000


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
