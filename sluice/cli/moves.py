"""A move of messages as a command makes it: until it ends, or somebody stops it, and what it came to is said."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from sluice.cli.output import is_quiet, tell
from sluice.cli.terminal import note
from sluice.federation.moves import Move
from sluice.operator.dead_letters import MOST_TOLD

MOST_MOVED = 1_000_000_000
SAID_EVERY_S = 5.0


def run_move(make: Callable[[Callable[[], bool]], Move], *, done: str, per_second: int | None = None) -> None:
    """Make a move, of which `make` is told what says whether it may go on, and run it. Exit code 1 where messages stay.

    `per_second` is how many go, on the average. Raises `QueueGone`, `CallFailed`: what was moved until then is said.
    """
    with _stopped_by_signals() as stopped:
        move = make(lambda: not stopped.is_set())
        began = said_at = time.monotonic()
        try:
            for moved in move.run():
                now = time.monotonic()
                if per_second is not None:
                    stopped.wait(moved / per_second - (now - began))
                if not is_quiet() and now - said_at > SAID_EVERY_S:
                    said_at = now
                    note(f"{moved} moved")
        finally:
            document = {"moved": move.moved, "stays": move.stays, "stopped": stopped.is_set()}
            said = f"{move.moved} {done}{', then stopped' if stopped.is_set() else ''}"
            tell(document, said)
    for id_, reason in list(move.stays.items())[:MOST_TOLD]:
        note(f"{id_} stays: {reason}")
    if move.stays:
        note(f"{len(move.stays)} messages stay where they were")
        raise typer.Exit(1)


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Set the event where somebody asks the program to end: what is under way is finished first."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
