"""How fast to receive: a bucket that fills with time, and may be overdrawn by receives that were under way. Pure."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Rate:
    """At most `per_second` messages on average, and as many at once. None: no limit. Times `now` are monotonic."""

    per_second: int | None = None
    _left: float = 0.0
    _at: float | None = None

    def open(self, now: float) -> bool:
        """Whether another receive may start."""
        if self.per_second is None:
            return True
        if self._at is None:
            self._left = float(self.per_second)
        else:
            self._left = min(float(self.per_second), self._left + (now - self._at) * self.per_second)
        self._at = now
        return self._left > 0

    def took(self, messages: int) -> None:
        """So many came: possibly more than were left, which the next ones wait for."""
        self._left -= messages
