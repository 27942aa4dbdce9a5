"""How fast to receive: a bucket that fills with time, and may be overdrawn by receives that were under way. Pure.

How fast it fills is a number, or what a function of the user's says, once a second.
"""

import importlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice_spark.errors import InvalidOption

log = logging.getLogger(__name__)

ASK_EVERY_S = 1.0
WARN_EVERY_S = 60.0

Limit = Callable[[], float | None]  # messages/s at the moment; None: as fast as they come


def limit_of(given: int | str | None) -> Limit | None:
    """Make the limit of a number, or of a function as `package.module:name`.

    Raises InvalidOption where there is no such function, or it doesn't work the first time.
    """
    if given is None:
        return None
    if isinstance(given, int):
        return lambda: given
    limit = Asked(_import_function(given))
    limit.first()
    return limit


@dataclass(slots=True)
class Asked:
    """A user's function as a limit. Once it has worked it fails no query: what it said last holds until it works."""

    ask: Callable[[], Any]
    clock: Callable[[], float] = time.monotonic
    _last: float | None = None
    _warned_at: float = -math.inf

    def first(self) -> None:
        """Ask. Raises InvalidOption where it raises, or says what is no rate."""
        try:
            self._last = _checked(self.ask())
        except Exception as error:
            raise InvalidOption("rateLimit", f"{type(error).__name__}: {error}") from error

    def __call__(self) -> float | None:
        """Give what it says now, or said last."""
        try:
            self._last = _checked(self.ask())
        except Exception as error:  # noqa: BLE001  the user's, whatever it is: the query goes on at the rate it had
            if self.clock() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = self.clock()
                log.warning("rateLimit stays at %s messages/s: %s: %s", self._last, type(error).__name__, error)
        return self._last


@dataclass(slots=True, kw_only=True)
class Rate:
    """At most `per_second` messages on average, and as many at once. None: no limit. Times `now` are monotonic.

    `limit` says it instead, once a second.
    """

    per_second: float | None = None
    limit: Limit | None = None
    _left: float = 0.0
    _at: float | None = None
    _asked_at: float = -math.inf

    def open(self, now: float) -> bool:
        """Whether another receive may start."""
        if self.limit is not None and now - self._asked_at >= ASK_EVERY_S:
            self.per_second, self._asked_at = self.limit(), now
        if self.per_second is None:
            self._at = None
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


def _import_function(name: str) -> Callable[[], Any]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOption("rateLimit", f"{name!r} can't be imported here: {error}") from error
    if not callable(function):
        raise InvalidOption("rateLimit", f"{name!r} is not a function")
    return function  # type: ignore[no-any-return]  # it is what the user wrote


def _checked(said: Any) -> float | None:
    """Take a rate. Raises ValueError for anything else."""
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said < math.inf:
        raise ValueError(f"{said!r} is no number of messages a second")
    return float(said)
