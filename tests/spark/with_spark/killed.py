"""Queries that are killed, in programs of their own, and what their sinks hold in the end."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.with_spark.driver import kill_session, started

MESSAGES = 4000
WITHIN_S = 180  # a killed driver's successor is another Java, on a machine that others use too
EXPECTED = [f"{number:06d}" for number in range(MESSAGES)]


class Drivers:
    """Programs of their own, each in its session, killed at the latest when the test ends."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, given: dict[str, Any]) -> subprocess.Popen[bytes]:
        program = [sys.executable, str(Path(__file__).with_name("driver.py")), json.dumps(given)]
        self.running.append(subprocess.Popen(program, start_new_session=True, stderr=subprocess.PIPE))
        return self.running[-1]

    def kill(self) -> None:
        for driver in self.running:
            kill_session(driver.pid)
            driver.wait()
            if driver.stderr and not driver.stderr.closed:
                sys.stderr.buffer.write(driver.stderr.read()[-4000:])  # pytest shows it if the test fails
                driver.stderr.close()


def until(condition: Callable[[], bool], *, within_s: float = WITHIN_S) -> None:
    """For what has no event to wait for."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def bodies(spark: Any, given: dict[str, Any]) -> list[str]:
    if not list(Path(given["out"]).glob("batch=*/_SUCCESS")):
        return []
    return sorted(row.body for row in spark.read.schema("body string").parquet(given["out"]).collect())


def committed(given: dict[str, Any]) -> int:
    """Batches in the commit log."""
    return sum(path.name.isdigit() for path in Path(given["checkpoint"], "commits").glob("*"))


def staged(given: dict[str, Any]) -> int:
    return len(list(Path(given["options"]["stagingLocation"]).glob("segments/*.arrow")))


def finished(spark: Any, sqs: Any, given: dict[str, Any], *, queue: str = "q", **options: str) -> list[str]:
    """All that the sink holds once a query in this process has gone on to the end and left the queue empty."""
    _without_an_offset_cut_off(Path(given["checkpoint"]))
    query = started(spark, {**given, "options": {**given["options"], **options}})
    try:
        until(lambda: query.exception() is not None or set(sqs.queues[queue].counts(time.time()).values()) == {0})
        query.processAllAvailable()
    finally:
        query.stop()
    return bodies(spark, given)


def _without_an_offset_cut_off(checkpoint: Path) -> None:
    """A checkpoint whose very first offset was being written is one that Spark refuses, and says to delete."""
    offsets = checkpoint / "offsets"
    if offsets.exists() and not any(path.name.isdigit() for path in offsets.iterdir()):
        shutil.rmtree(checkpoint)


class Scripted:
    """Kills a driver when the in-memory SQS is asked for something for the n-th time: before it is done, or after."""

    def __init__(self, sqs: Any, action: str, *, call: int, done: bool) -> None:
        self.driver: subprocess.Popen[bytes] | None = None
        self.sqs, self.action, self.call, self.done = sqs, action, call, done
        sqs.watch = self

    def __call__(self, action: str, *, done: bool) -> None:
        if (action, done) != (self.action, self.done):
            return
        self.call -= 1
        if not self.call:
            self.reached()

    def reached(self) -> None:
        assert self.driver is not None
        kill_session(self.driver.pid)
