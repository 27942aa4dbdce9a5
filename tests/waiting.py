"""Waiting for what has no event to wait for: ask, ever less often."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
GROWTH = 1.5


def growing_pauses() -> Iterator[float]:
    """Yield pauses in seconds, without end.

    The longer something takes, the less a late answer costs beside it, and each question costs the embedded cloud time.
    """
    pause = FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * GROWTH, LONGEST_PAUSE_S)


def wait_until(read: Callable[[], T], is_right: Callable[[T], bool] = bool, *, within_s: float) -> T:
    """Read until the value is right, and return it. Fails with the last value after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    for pause in growing_pauses():
        if is_right(value := read()):
            return value
        assert time.monotonic() < deadline, value
        time.sleep(pause)
    raise AssertionError
