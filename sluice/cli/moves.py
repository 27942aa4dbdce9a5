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
PrepareMove = Callable[[Callable[[], bool]], Move]


def run_move(prepare_move: PrepareMove, *, outcome: str, per_second: int | None = None, named_count: int = 0) -> None:
    """Run the move that `prepare_move` returns, and exit with code 1 if messages can't be moved and stay in the queue.

    `prepare_move` gets a function that returns whether the move may continue. `per_second` limits the average rate. The
    exit code is also 1 if fewer messages were found than the user named (`named_count`). Raises `QueueGone` and
    `CallFailed`, but always prints the number of moved messages first.
    """
    with _catch_stop_signals() as stopped:
        move = prepare_move(lambda: not stopped.is_set())
        began_s = reported_at_s = time.monotonic()
        try:
            for moved in move.run():
                now = time.monotonic()
                if per_second is not None:
                    stopped.wait(moved / per_second - (now - began_s))
                if not is_quiet() and now - reported_at_s > REPORT_INTERVAL_S:
                    reported_at_s = now
                    print_note(f"{moved} moved")
        finally:
            document = {"moved": move.moved, "stays": move.unmoved, "stopped": stopped.is_set()}
            summary = f"{move.moved} {outcome}{', then stopped' if stopped.is_set() else ''}"
            print_result(document, summary)
    for id_, reason in list(move.unmoved.items())[:MAX_LISTED_FAILURES]:
        print_note(f"{id_} was not moved: {reason}")
    if move.unmoved:
        print_note(f"{len(move.unmoved)} messages were not moved and stay in the queue")
        raise typer.Exit(1)
    if not stopped.is_set():
        require_found(move.moved, named_count=named_count)


def require_found(found_count: int, *, named_count: int) -> None:
    """Exit with code 1 if fewer messages were found than the user named by their ids."""
    if found_count < named_count:
        print_note(f"the queue has {found_count} of the {named_count} messages that were named")
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
