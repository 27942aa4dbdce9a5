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


def build_rate_limit(rate_option: int | str | None) -> RateLimit | None:
    """Build the limit from a number, or from a function named as `package.module:name`.

    Raises InvalidOption if the function doesn't exist, or if its first call fails.
    """
    if rate_option is None:
        return None
    if isinstance(rate_option, int):
        return lambda: rate_option
    limit = RateLimitFunction(_import_function(rate_option))
    limit.check()
    return limit


@dataclass(slots=True)
class RateLimitFunction:
    """A rate limit that a user's function returns. If a later call fails, the last rate stays."""

    function: Callable[[], Any]
    clock: Callable[[], float] = time.monotonic
    _last_rate: float | None = None
    _warned_at: float = -math.inf

    def check(self) -> None:
        """Call the user's function. Raises InvalidOption if the function raises an error or returns no rate."""
        try:
            self._last_rate = _check_rate(self.function())
        except Exception as error:
            raise InvalidOption("rateLimit", f"{type(error).__name__}: {error}") from error

    def __call__(self) -> float | None:
        """Return the rate that the user's function returns now, or the last rate if the function fails."""
        try:
            self.check()
        except InvalidOption as error:
            if self.clock() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = self.clock()
                log.warning("rateLimit stays at %s messages/s: %s", self._last_rate, error.why)
        return self._last_rate


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """A token bucket: admits at most `per_second` messages on average, and as many at once. None means no limit.

    If `limit` is set, its result replaces `per_second` once a second. The times `now` are monotonic seconds.
    """

    per_second: float | None = None
    limit: RateLimit | None = None
    _tokens: float = 0.0
    _refilled_at: float | None = None
    _limit_read_at: float = -math.inf

    def can_receive(self, now: float) -> bool:
        """Whether another receive may start."""
        if self.limit is not None and now - self._limit_read_at >= ASK_EVERY_S:
            self.per_second, self._limit_read_at = self.limit(), now
        if self.per_second is None:
            self._refilled_at = None
            return True
        if self._refilled_at is None:
            self._tokens = float(self.per_second)
        else:
            self._tokens = min(float(self.per_second), self._tokens + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        return self._tokens > 0

    def take(self, messages: int) -> None:
        """Subtract received messages from the bucket. If the bucket becomes negative, later receives wait."""
        self._tokens -= messages


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
