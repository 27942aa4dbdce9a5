"""Limits the receive rate by a token bucket, which receives in flight can overdraw. Pure.

The rate is a number, or the result of a user's function that is called once a second.
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

RateLimit = Callable[[], float | None]  # returns messages/s, or None for no limit


def build_rate_limit(given: int | str | None) -> RateLimit | None:
    """Build the limit from a number, or from a function named as `package.module:name`.

    Raises InvalidOption if the function doesn't exist, or if its first call fails.
    """
    if given is None:
        return None
    if isinstance(given, int):
        return lambda: given
    limit = RateFunction(_import_function(given))
    limit.check()
    return limit


@dataclass(slots=True)
class RateFunction:
    """A rate limit that a user's function returns. If a later call fails, the last rate stays."""

    ask: Callable[[], Any]
    clock: Callable[[], float] = time.monotonic
    _last: float | None = None
    _warned_at: float = -math.inf

    def check(self) -> None:
        """Call the user's function. Raises InvalidOption if the function raises an error or returns no rate."""
        try:
            self._last = _check_rate(self.ask())
        except Exception as error:
            raise InvalidOption("rateLimit", f"{type(error).__name__}: {error}") from error

    def __call__(self) -> float | None:
        """Return the rate that the user's function returns now, or the last rate if the function fails."""
        try:
            self.check()
        except InvalidOption as error:
            if self.clock() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = self.clock()
                log.warning("rateLimit stays at %s messages/s: %s", self._last, error.why)
        return self._last


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """A token bucket: admits at most `per_second` messages on average, and as many at once. None means no limit.

    If `limit` is set, its result replaces `per_second` once a second. The times `now` are monotonic seconds.
    """

    per_second: float | None = None
    limit: RateLimit | None = None
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

    def take(self, messages: int) -> None:
        """Subtract received messages from the bucket. If the bucket becomes negative, later receives wait."""
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


def _check_rate(rate: Any) -> float | None:
    """Return the user's function's result as a rate. Raises ValueError if it isn't a rate."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ValueError(f"{rate!r} is no number of messages a second")
    return float(rate)
