"""The Spark session of a job: EMR Serverless gives one its master and resources, a bare machine gets a local one."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from sluice_spark import register

LOCAL_MASTER = "local[*]"
_LOCAL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
# What the tables rely on, wherever a job runs
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",  # a partition `date` is a day of UTC
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is Spark's and Hive's alone
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # a batch of few partitions isn't sorted by them
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # exchange `1` is a text
}


def job_session(name: str) -> SparkSession:
    """Open the session, with the `sqs` format known. Where nothing says what master to use, this machine is."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # Whether spark-submit started this program, or the environment says what it would
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if not submitted:
        builder = builder.master(LOCAL_MASTER)
        for option, value in _LOCAL.items():
            builder = builder.config(option, value)
    return prepared(builder.getOrCreate())


def abandoned() -> None:
    """End the JVM that PySpark has started for us. Spark isn't asked: we may have been amid a call to it."""
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001  PySpark offers no other way to its process
    if process is not None:  # else it has started us, as spark-submit does, and ends with us
        process.terminate()
        process.wait()


def prepared(spark: SparkSession) -> SparkSession:
    """Make a session that is there fit for the jobs."""
    for option, value in SETTINGS.items():
        spark.conf.set(option, value)
    register(spark)
    return spark


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
