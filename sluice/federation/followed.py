"""A replica of the bindings as one execution environment keeps it: made of a snapshot once, then of what changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.federation.matching.bindings import Bindings
from sluice.federation.matching.changes import Replica, follow, replica_of
from sluice.federation.ports import ChangeLog, NowMs
from sluice.federation.seen import CACHED_MS

R = TypeVar("R", bound=Replica)


@dataclass(slots=True)
class Followed(Generic[R]):
    """What is kept between batches; `make` compiles a snapshot. Not for threads: the replica changes in place."""

    log: ChangeLog
    make: Callable[[Bindings], R]
    _replica: R | None = None

    def value(self) -> R:
        """Read the replica as it stands now: where nothing has changed, one small read. Raises `BadBindings`."""
        replica = self._replica
        news = self.log.since(None if replica is None else replica.version)
        self._replica = None  # whatever goes wrong from here on, half of a change is never kept
        if replica is None or news.base is not None:
            replica = None  # the old one goes before there is a new one: there isn't memory for two
            replica = replica_of(news.snapshot, self.make, version=news.base or 0)
        follow(replica, news.changes)
        self._replica = replica
        return replica

    def advance(self, change: bytes) -> R:
        """Take in the next version, which was just written here. Raises `BadBindings`."""
        replica, self._replica = self._replica, None
        if replica is None:
            return self.value()
        follow(replica, [change])
        self._replica = replica
        return replica


@dataclass(slots=True)
class SeenReplica(Generic[R]):
    """The same for who needn't ask each time: never older than a second."""

    followed: Followed[R]
    now_ms: NowMs
    _value: R | None = None
    _checked_at_ms: int = 0

    def value(self) -> R:
        """Read the replica, at most a second old. Raises `BadBindings`."""
        now_ms = self.now_ms()
        if self._value is None or now_ms - self._checked_at_ms >= CACHED_MS:
            self._value = None  # what can't be read is looked at again, and the old one isn't taken for it
            self._value = self.followed.value()
            self._checked_at_ms = now_ms
        return self._value
