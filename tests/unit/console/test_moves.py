"""A move of dead letters beside the page: what it says of itself once it has ended."""

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.console.moves import RunningMove
from sluice.errors import CallFailed


def ended(error: Exception) -> RunningMove:
    """A move that fails after its first batch."""

    def run() -> Iterator[int]:
        yield 1
        raise error

    move: Any = SimpleNamespace(run=run, moved=1, unmoved={})
    running = RunningMove(queue="federation", kind="redrive", began_ms=1, move=move, stop_requested=Event())
    running.run()
    return running


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CallFailed("SendMessage", "AccessDenied", "no"), "SendMessage: AccessDenied: no"),
        (KeyError("ours"), "KeyError: 'ours'"),
    ],
    ids=["AWS's", "ours"],
)
def test_a_move_that_failed_says_why_whosever_fault_it_is(error: Exception, said: str) -> None:
    document = ended(error).document
    assert (document["ended"], document["error"]) == (True, said)
