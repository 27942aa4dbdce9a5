"""The Spark session of a job. EMR Serverless configures Spark's master and resources; elsewhere Spark runs locally."""

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
# The tables need these settings on EMR Serverless and on local machines.
SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",  # Partition `date` is a day in UTC.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Few readers support the default, INT96.
    "spark.sql.maxConcurrentOutputFileWriters": "64",  # Avoids sorting rows if partitions are few.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # Exchange `1` stays a string.
}


def open_job_session(name: str) -> SparkSession:
    """Open the session and register the `sqs` format. Without a configured master Spark runs on this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    # True if spark-submit started this program, or if the environment contains arguments of spark-submit.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if not submitted:
        builder = builder.master(LOCAL_MASTER)
        for option, value in _LOCAL.items():
            builder = builder.config(option, value)
    return configure_session(builder.getOrCreate())


def terminate_jvm() -> None:
    """End the JVM that PySpark started, without a call to Spark: another call may have been interrupted."""
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001  PySpark offers no other way to its process
    if process is not None:  # None under spark-submit, because its JVM started this process
        process.terminate()
        process.wait()


def configure_session(spark: SparkSession) -> SparkSession:
    """Configure an open session for the jobs."""
    for option, value in SETTINGS.items():
        spark.conf.set(option, value)
    register(spark)
    return spark


LOOK_EVERY_S = 0.2
BATCH_WITHIN_S = 60.0  # maximum seconds to wait for a running batch after SIGTERM


# These loggers report a failed query with its stack trace: one of py4j in Python, one of Spark in the JVM.
REPORTERS_HERE, REPORTERS_THERE = "py4j.clientserver", "org.apache.spark.sql.execution.streaming"


class StopRequested(Exception):
    """Raised after a stop signal, to end a query before its next batch."""


def stop_before(batch: int, spark: SparkSession) -> NoReturn:
    """Raise StopRequested, after silencing the loggers that would report the exception as a failure of the query."""
    logging.getLogger(REPORTERS_HERE).setLevel(logging.CRITICAL)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  PySpark sets all loggers or none
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(REPORTERS_THERE, log4j.Level.OFF)
    raise StopRequested(f"asked to stop before batch {batch}")


@contextmanager
def handle_stop_signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM or ctrl-C within the context. Outside the main thread signals aren't handled.

    A second ctrl-C raises KeyboardInterrupt, without a wait for the running batch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request_stop(signal_number: int, _: Any) -> None:
        if signal_number == signal.SIGINT and stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    old_handlers = {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for signal_number, handler in old_handlers.items():
            signal.signal(signal_number, handler)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Deliver ctrl-C only at the end of the context, because a JVM that is interrupted during its start keeps running.

    The signal is masked, because PySpark sets its own handler within the context.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


@contextmanager
def suppress_stop_error() -> Iterator[None]:
    """Suppress the query error that `stop_before` caused; raise every other error."""
    try:
        yield
    except StreamingQueryException as error:
        if f"{StopRequested.__module__}.{StopRequested.__name__}" not in str(error):
            raise


def await_query(query: Any, stopping: threading.Event) -> None:
    """Wait until `stopping` is set, then stop the query between two batches. Raises the query's error if it fails."""
    with suppress_stop_error():
        while not stopping.is_set():
            if query.awaitTermination(LOOK_EVERY_S):
                return
    deadline = time.monotonic() + BATCH_WITHIN_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    query.stop()  # Has no effect if StopRequested has ended the query.
