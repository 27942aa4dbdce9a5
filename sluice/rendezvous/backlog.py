"""Counts that an environment holds back for a while, because there are many and all alike, to publish them together.

Whoever ends the environment publishes the rest.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.rendezvous.ports import NowMs

HELD_BACK_MS = 20_000


@dataclass(slots=True)
class Backlog:
    """Says when it is told: at once the first time, and then so long after the last."""

    told_at_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time."""
        return self.told_at_ms is None or now_ms - self.told_at_ms >= HELD_BACK_MS


@dataclass(slots=True, kw_only=True)
class HeldCounts:
    """Counts of an environment, of which those of `names` are held back where an invocation has no others."""

    names: frozenset[str]
    now_ms: NowMs
    _counts: Counter[str] = field(default_factory=Counter)
    _backlog: Backlog = field(default_factory=Backlog)

    def due(self, counts: Mapping[str, int]) -> Counter[str]:
        """Add an invocation's counts; returns what is to be published now."""
        self._counts.update(counts)
        now_ms = self.now_ms()
        if counts.keys() <= self.names and not self._backlog.is_due(now_ms):
            return Counter()
        self._backlog = Backlog(now_ms)
        return self.rest()

    def rest(self) -> Counter[str]:
        """Hand out all that is held back."""
        rest, self._counts = self._counts, Counter()
        return rest
