"""SIGTERM, or ctrl-C, asks a job to stop: between two batches of its query, which is then whole on both sides."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

LOOK_EVERY_S = 0.2
BATCH_WITHIN_S = 60.0  # after SIGTERM, for a running batch


# What reports the end of a query that failed, at length: py4j's here, Spark's in the JVM
REPORTERS_HERE, REPORTERS_THERE = "py4j.clientserver", "org.apache.spark.sql.execution.streaming"


class Stopped(Exception):
    """Ends a query before a batch, because we were asked to stop."""


def stop_before(batch: int, spark: SparkSession) -> NoReturn:
    """Raise Stopped. To Spark it is an error of the query's, and to nobody else: nothing reports it."""
    logging.getLogger(REPORTERS_HERE).setLevel(logging.CRITICAL)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  PySpark sets all loggers or none
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(REPORTERS_THERE, log4j.Level.OFF)
    raise Stopped(f"asked to stop before batch {batch}")


@contextmanager
def asked_to_stop(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and ctrl-C set the event meanwhile, where a program's main thread is ours.

    A second ctrl-C raises KeyboardInterrupt: who is in a hurry doesn't wait for the batch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, _: Any) -> None:
        if number == signal.SIGINT and stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupt_held() -> Iterator[None]:
    """Ctrl-C comes at the end: a JVM that is left amid its start stays behind.

    By the signal's mask, as PySpark sets a handler of its own in the middle of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
