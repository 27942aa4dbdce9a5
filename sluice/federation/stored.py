"""A value in a document, changed one change at a time by whoever wins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sluice.codec import Format
from sluice.errors import SluiceError

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument

MAX_RACES = 50

T = TypeVar("T")


class TooBusy(SluiceError):
    """Written by too many at once; the request may be repeated."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """One document's value; `empty` makes the one before the first save."""

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
