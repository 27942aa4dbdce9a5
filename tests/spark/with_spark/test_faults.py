"""What the guarantee table of docs/spark.md promises, on Spark, with a sink that is idempotent by batch: none of 4,000
messages lost, none doubled."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_sqs.queues import Queue
from tests.spark.with_spark.driver import kill_session, started

MESSAGES = 4000
WITHIN_S = 90
VISIBILITY_S = 3
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


@pytest.fixture
def drivers(spark: Any) -> Iterator[Drivers]:  # spark: it sets the environment that programs inherit
    running = Drivers()
    yield running
    running.kill()


@pytest.fixture
def given(sqs: Any, tmp_path: Path) -> dict[str, Any]:
    sqs.queues["q"].visibility_s = VISIBILITY_S
    options = {
        "queueUrl": sqs.queue_url("q"),
        "endpoint": sqs.url,
        "stagingLocation": str(tmp_path / "staging"),
        "waitTimeSeconds": "1",
        "maxMessagesPerTrigger": "1000",
    }
    return {"options": options, "checkpoint": str(tmp_path / "checkpoint"), "out": str(tmp_path / "out")}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
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
        if self.driver is None or (action, done) != (self.action, self.done):
            return
        self.call -= 1
        if not self.call:
            kill_session(self.driver.pid)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("ReceiveMessage", 3, True), id="after receive"),
        pytest.param(("DeleteMessageBatch", 2, False), id="after stage"),  # the first is the probe for permission
        pytest.param(("DeleteMessageBatch", 30, True), id="after delete"),
    ],
)
def test_a_killed_driver_loses_and_doubles_nothing(  # noqa: PLR0917  fixtures
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers, moment: tuple[str, int, bool]
) -> None:
    action, call, done = moment
    watch = Scripted(sqs, action, call=call, done=done)
    watch.driver = drivers.start(given)
    fill(MESSAGES)
    watch.driver.wait(WITHIN_S)
    assert watch.call <= 0
    assert (staged(given) > 1) == (action == "DeleteMessageBatch")  # the claim, and what was received
    assert finished(spark, sqs, given) == EXPECTED


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("ReceiveMessage", 20, True), id="after receive"),
        pytest.param(("DeleteMessageBatch", 20, True), id="after delete"),
    ],
)
def test_a_fifo_groups_order_survives_a_killed_driver(
    spark: Any, sqs: Any, given: Any, drivers: Drivers, moment: tuple[str, int, bool]
) -> None:
    """Over batches too, which are numbered: within each group the sink's rows come as they were sent."""
    action, call, done = moment
    groups, each = 8, 60
    queue = sqs.queues["q.fifo"] = Queue("q.fifo", visibility_s=VISIBILITY_S)
    given["options"].update(queueUrl=sqs.queue_url("q.fifo"), maxMessagesPerTrigger="100")
    for number in range(each):
        for group in range(groups):
            entry = {"MessageBody": f"{group} {number:03d}", "MessageGroupId": f"g{group}"}
            queue.send({**entry, "MessageDeduplicationId": f"{group}-{number}"}, time.time())
    watch = Scripted(sqs, action, call=call, done=done)
    watch.driver = drivers.start(given)
    watch.driver.wait(WITHIN_S)
    assert watch.call <= 0
    assert queue.known
    finished(spark, sqs, given, queue="q.fifo")
    rows = spark.read.schema("body string, batch int").parquet(given["out"]).coalesce(1)
    in_batches: dict[int, list[str]] = {}
    for row in rows.collect():
        in_batches.setdefault(row.batch, []).append(row.body)
    assert len(in_batches) > 1
    found = [body for number in sorted(in_batches) for body in in_batches[number]]
    for group in range(groups):
        own = [body for body in found if body.startswith(f"{group} ")]
        assert own == [f"{group} {number:03d}" for number in range(each)]


def test_a_driver_killed_after_the_sinks_write_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    driver = drivers.start({**given, "die_in_batch": 1})
    fill(MESSAGES)
    driver.wait(WITHIN_S)
    assert committed(given) == 1
    assert finished(spark, sqs, given, maxMessagesPerTrigger="300", maxConnections="3") == EXPECTED


def test_a_driver_killed_after_the_commit_log_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    driver = drivers.start(given)
    fill(MESSAGES)
    until(lambda: committed(given) > 0)
    kill_session(driver.pid)
    driver.wait(WITHIN_S)
    assert finished(spark, sqs, given, maxMessagesPerTrigger="5000") == EXPECTED


def test_of_two_drivers_the_newer_goes_on_and_the_older_is_fenced(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    older = drivers.start(given)
    fill(MESSAGES // 2)
    until(lambda: len(bodies(spark, given)) == MESSAGES // 2)
    newer = started(spark, given)
    try:
        until(lambda: newer.lastProgress is not None or newer.exception() is not None)
        sqs.queues["q"].fill(EXPECTED[MESSAGES // 2 :], time.time())
        _, said = older.communicate(timeout=WITHIN_S)
        assert b"Fenced" in said
        until(lambda: set(sqs.queues["q"].counts(time.time()).values()) == {0})
        newer.processAllAvailable()
    finally:
        newer.stop()
    assert bodies(spark, given) == EXPECTED


def test_a_batch_slower_than_the_visibility_timeout_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    counts: list[tuple[int, int]] = []
    sqs.queues["q"].visibility_s = 1
    fill(MESSAGES)

    def slow(batch: Any, number: int) -> None:
        time.sleep(1.2)  # longer than the queue's visibility timeout, in the server's real time
        batch.write.mode("overwrite").parquet(f"{given['out']}/batch={number}")
        counts.append((batch.count(), batch.count()))  # two more actions on the batch

    frame = spark.readStream.format("sqs").options(**given["options"]).load()
    query = frame.writeStream.option("checkpointLocation", given["checkpoint"]).foreachBatch(slow).start()
    try:
        until(lambda: query.exception() is not None or sum(first for first, _ in counts) >= MESSAGES)
    finally:
        query.stop()
    assert all(first == second for first, second in counts)
    assert bodies(spark, given) == EXPECTED
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_a_task_tried_again_and_its_twin_read_the_same_rows(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    """Each task's partition is read twice, as a retry and a speculative twin do."""
    from sluice_spark.options import parsed  # noqa: PLC0415  may be missing here
    from sluice_spark.source import SqsReader  # noqa: PLC0415  may be missing here

    fill(MESSAGES)
    del given["options"]["maxMessagesPerTrigger"]
    reader = SqsReader(parsed(given["options"]))
    for partition in reader.partitions():
        first, twin = (list(reader.read(partition)) for _ in range(2))
        assert first == twin
        assert sum(batch.num_rows for batch in first) == MESSAGES
    receives = sqs.calls["ReceiveMessage"]
    list(reader.read(partition))
    assert sqs.calls["ReceiveMessage"] == receives


def test_a_task_whose_worker_dies_is_tried_again_and_the_query_goes_on(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    marker = Path(given["out"]).with_name("died")
    driver = drivers.start({**given, "die_in_task": str(marker)})
    fill(MESSAGES)
    until(lambda: len(bodies(spark, given)) == MESSAGES or driver.poll() is not None)
    assert marker.exists()
    assert bodies(spark, given) == EXPECTED


def test_an_idle_end_leaves_nothing_in_the_queue(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    fill(MESSAGES)
    assert finished(spark, sqs, given) == EXPECTED
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


def test_after_commit_messages_stay_in_the_queue_until_their_batch_is_committed(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    """Batches take longer than the visibility timeout: heartbeats keep the messages from anybody else."""
    in_flight: list[int] = []
    sqs.queues["q"].visibility_s = 2
    fill(MESSAGES)

    def slow(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{given['out']}/batch={number}")
        time.sleep(2.5)  # longer than the queue's visibility timeout, in the server's real time
        in_flight.append(sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessagesNotVisible"])

    frame = spark.readStream.format("sqs").options(**given["options"], deleteMode="afterCommit").load()
    query = frame.writeStream.option("checkpointLocation", given["checkpoint"]).foreachBatch(slow).start()
    try:
        until(lambda: query.exception() is not None or set(sqs.queues["q"].counts(time.time()).values()) == {0})
    finally:
        query.stop()
    assert in_flight[0] >= 1000
    assert bodies(spark, given) == EXPECTED
    assert sqs.calls["ChangeMessageVisibilityBatch"]
