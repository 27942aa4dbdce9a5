"""What is stored, and what one execution environment keeps of it between its invocations. Not for threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sluice.codec import Format
from sluice.errors import TooBusy
from sluice.federation.matching.bindings import Bindings, Replica, follow, replica_of

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.change_logs import DynamoChangeLog
    from sluice.aws.documents import DynamoDocument

CACHED_MS = 1_000
MAX_RACES = 50

T = TypeVar("T")
R = TypeVar("R", bound=Replica)


@dataclass(slots=True)
class Seen(Generic[T]):
    """A document: decoded once a version, never older than a second. `decode` gets None before the first save."""

    document: "DynamoDocument"
    decode: Callable[[bytes | None], T]
    now_ms: Callable[[], int]
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


@dataclass(slots=True)
class Followed(Generic[R]):
    """A replica of the bindings, which changes in place: `make` compiles a snapshot once, then changes are taken in.

    With a clock the log is asked once a second, without one each time.
    """

    log: "DynamoChangeLog"
    make: Callable[[Bindings], R]
    now_ms: Callable[[], int] | None = None
    _replica: R | None = None
    _checked_at_ms: int = 0

    def value(self) -> R:
        """Read the replica; where nothing has changed, that costs one small read. Raises `BadSnapshot`."""
        now_ms = 0 if self.now_ms is None else self.now_ms()
        replica = self._replica
        if replica is not None and self.now_ms is not None and now_ms - self._checked_at_ms < CACHED_MS:
            return replica
        news = self.log.since(None if replica is None else replica.version)
        self._replica = None  # whatever goes wrong from here on, half of a change is never kept
        if replica is None or news.base is not None:
            replica = None  # the old one goes before there is a new one: there isn't memory for two
            replica = replica_of(news.snapshot, self.make, version=news.base or 0)
        follow(replica, news.changes)
        self._replica, self._checked_at_ms = replica, now_ms
        return replica

    def advance(self, change: bytes) -> R:
        """Take in the next version, which was just written here. Raises `BadSnapshot`."""
        replica, self._replica = self._replica, None
        if replica is None:
            return self.value()
        follow(replica, [change])
        self._replica = replica
        return replica


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """One document's value, changed by whoever wins; `empty` makes the one before the first save."""

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
