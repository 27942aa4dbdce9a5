"""SIGTERM asks a job to stop: between two batches of its query, which is then whole on both sides."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException

LOOK_EVERY_S = 0.2
BATCH_WITHIN_S = 60.0  # after SIGTERM, for a running batch


class Stopped(Exception):
    """Ends a query before a batch, because we were asked to stop."""


@contextmanager
def asked_to_stop(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM sets the event meanwhile, where a program's main thread is ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stopped_on_purpose() -> Iterator[None]:
    """Lets a query's error pass, but for the one that we ended it with."""
    try:
        yield
    except StreamingQueryException as error:
        if f"{Stopped.__module__}.{Stopped.__name__}" not in str(error):
            raise


def awaited(query: Any, stopping: threading.Event) -> None:
    """Until the query fails, which raises, or we are asked to stop: then it is stopped between two batches."""
    with stopped_on_purpose():
        while not stopping.is_set():
            if query.awaitTermination(LOOK_EVERY_S):
                return
    deadline = time.monotonic() + BATCH_WITHIN_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    query.stop()  # of one that has ended by Stopped, it does nothing
