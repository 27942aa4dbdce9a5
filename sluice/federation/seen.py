"""A document as one execution environment knows it: decoded once a version, never older than a second."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.federation.ports import Document, NowMs

CACHED_MS = 1_000

T = TypeVar("T")


@dataclass(slots=True)
class Seen(Generic[T]):
    """What is kept between batches. Not for threads. `decode` gets None before the first save."""

    document: Document
    decode: Callable[[bytes | None], T]
    now_ms: NowMs
    _version: int = -1
    _checked_at_ms: int = 0
    _value: T | None = None

    def value(self) -> T:
        """Read the document's value, at most a second old."""
        now_ms = self.now_ms()
        if self._value is None or now_ms - self._checked_at_ms >= CACHED_MS:
            if self._value is None or self.document.version() != self._version:
                content, version = self.document.load()
                # Both or neither: a value that can't be read is looked at again, and isn't taken for the old one.
                self._value, self._version = self.decode(content), version
            self._checked_at_ms = now_ms
        return self._value
