"""What a page follows: a reading of a site, with what it asks for. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from sluice.errors import Malformed

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
