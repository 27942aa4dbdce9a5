"""Moves messages between queues for a command, until the move ends or is interrupted, and prints its progress."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from sluice.cli.output import is_quiet, print_result
from sluice.cli.terminal import print_note
from sluice.federation.moves import Move
from sluice.operator.dead_letters import MAX_LISTED_FAILURES

MAX_MOVED = 1_000_000_000
REPORT_INTERVAL_S = 5.0


def run_move(
    make: Callable[[Callable[[], bool]], Move], *, done: str, per_second: int | None = None, named: int = 0
) -> None:
    """Run the move that `make` returns, and exit with code 1 if messages can't be moved and stay in the queue.

    `make` gets a function that returns whether the move may continue. `per_second` limits the average rate of messages.
    The exit code is also 1 if fewer messages were found than the user named (`named` is their number). Raises
    `QueueGone` and `CallFailed`, but always prints the number of moved messages first.
    """
    with _catch_stop_signals() as stopped:
        move = make(lambda: not stopped.is_set())
        began = said_at = time.monotonic()
        try:
            for moved in move.run():
                now = time.monotonic()
                if per_second is not None:
                    stopped.wait(moved / per_second - (now - began))
                if not is_quiet() and now - said_at > REPORT_INTERVAL_S:
                    said_at = now
                    print_note(f"{moved} moved")
        finally:
            document = {"moved": move.moved, "stays": move.unmoved, "stopped": stopped.is_set()}
            said = f"{move.moved} {done}{', then stopped' if stopped.is_set() else ''}"
            print_result(document, said)
    for id_, reason in list(move.unmoved.items())[:MAX_LISTED_FAILURES]:
        print_note(f"{id_} was not moved: {reason}")
    if move.unmoved:
        print_note(f"{len(move.unmoved)} messages were not moved and stay in the queue")
        raise typer.Exit(1)
    if not stopped.is_set():
        require_found(move.moved, named=named)


def require_found(found: int, *, named: int) -> None:
    """Exit with code 1 if fewer messages were found than the user named by their ids."""
    if found < named:
        print_note(f"the queue has {found} of the {named} messages that were named")
        raise typer.Exit(1)


@contextmanager
def _catch_stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set instead of ending the program, so that the current batch finishes."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
