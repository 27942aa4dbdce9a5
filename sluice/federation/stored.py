"""Stored documents, and their cache between invocations. Not thread-safe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sluice.codec import Format
from sluice.errors import TooBusy
from sluice.federation.matching.bindings import CACHED_MS

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument

MAX_RACES = 50

T = TypeVar("T")


@dataclass(slots=True)
class CachedDocument(Generic[T]):
    """Caches a document, decoded once a version and at most a second old. `decode` gets None before the first save."""

    document: "DynamoDocument"
    decode: Callable[[bytes | None], T]
    now_ms: Callable[[], int]
    _version: int = -1
    _checked_at_ms: int = 0
    _value: T | None = None

    def value(self) -> T:
        """Return the document's value, at most a second old."""
        now_ms = self.now_ms()
        if self._value is None or now_ms - self._checked_at_ms >= CACHED_MS:
            if self._value is None or self.document.version() != self._version:
                content, version = self.document.load()
                # Both or neither: a value that can't be read is looked at again, and isn't taken for the old one.
                self._value, self._version = self.decode(content), version
            self._checked_at_ms = now_ms
        return self._value


@dataclass(frozen=True, slots=True)
class DocumentStore(Generic[T]):
    """A document's value, with optimistic concurrency; `empty` makes the value before the first save."""

    document: "DynamoDocument"
    format: Format[T]
    empty: Callable[[], T]

    def value(self) -> T:
        """Read the value as it stands. Raises `BadSnapshot`."""
        return self._load()[0]

    def change(self, change: Callable[[T], T]) -> T:
        """Change the value, and return it; nothing is written where nothing changes. Raises `TooBusy`, `BadSnapshot`.

        `change` is called again each time that somebody else has written meanwhile.
        """
        for _ in range(MAX_RACES):
            before, version = self._load()
            after = change(before)
            if after == before or self.document.save(self.format.pack(after), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write {self.format.kind}")

    def _load(self) -> tuple[T, int]:
        content, version = self.document.load()
        return (self.empty() if content is None else self.format.unpack(content)), version
