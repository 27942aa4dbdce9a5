"""Failures by script: which calls go wrong, how, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

How = Literal["refuse", "lose", "hang", "partial"]


@dataclass(slots=True, kw_only=True)
class Failure:
    """The next `count` calls of `action` (after `skip` good ones) fail.

    refuse: not done, answered with `status` and `code`. lose: done, but the connection breaks instead of an answer.
    hang: not done,
    never answered. partial: of a batch every second entry, from the first, isn't done, with `code`.
    """

    action: str
    how: How = "refuse"
    count: int = 1
    skip: int = 0
    status: int = 500
    code: str = "InternalError"


class Script:
    """Takes failures, gives each out as often as it says."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """A Failure's fields, as JSON carries them."""
        self._failures.append(Failure(**values))

    def next(self, action: str) -> Failure | None:
        """The failure due on this call, used up by one."""
        for failure in self._failures:
            if failure.action != action or not failure.count:
                continue
            if failure.skip:
                failure.skip -= 1
                return None
            failure.count -= 1
            return failure
        return None
