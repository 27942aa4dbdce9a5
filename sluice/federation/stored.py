"""Stored documents, and their cache between invocations. Not thread-safe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sluice.codec import Format
from sluice.errors import TooBusy
from sluice.federation.matching.bindings import CACHED_MS

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.documents import DynamoDocument

MAX_RACES = 50

T = TypeVar("T")


@dataclass(slots=True)
class CachedDocument(Generic[T]):
    """Caches a document for a second, and decodes each version only once. Before the first save, `decode` gets None."""

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
                # The version is set with the value. So after an error in `decode`, the next call loads the document.
                self._value, self._version = self.decode(content), version
            self._checked_at_ms = now_ms
        return self._value


@dataclass(frozen=True, slots=True)
class DocumentStore(Generic[T]):
    """A store of one document, with optimistic concurrency. `empty` returns the value before the first save."""

    document: "DynamoDocument"
    format: Format[T]
    empty: Callable[[], T]

    def value(self) -> T:
        """Return the current value of the document. Raises `BadSnapshot`."""
        return self._load()[0]

    def change(self, change: Callable[[T], T]) -> T:
        """Change and save the document's value, and return the new value.

        `change` is called again if another invocation has written in the meantime. Raises `TooBusy`, `BadSnapshot`,
        `BadConfiguration`.
        """
        for _ in range(MAX_RACES):
            before, version = self._load()
            after = change(before)
            if after == before or self.document.save(self.format.pack_checked(after), after=version):
                return after
        raise TooBusy(f"lost {MAX_RACES} races to write {self.format.kind}")

    def _load(self) -> tuple[T, int]:
        content, version = self.document.load()
        return (self.empty() if content is None else self.format.unpack(content)), version
