"""A part of a page that can't be read takes nothing else with it: what is tried either is there, or says why not."""

from collections.abc import Callable
from typing import TypeVar

from sluice.errors import SluiceError

T = TypeVar("T")


def tried(troubles: dict[str, str], what: str, task: Callable[[], T]) -> T | None:
    """Give what a task says; None where it fails, and the reason is noted under `what`."""
    try:
        return task()
    except SluiceError as error:
        troubles[what] = str(error)
        return None
