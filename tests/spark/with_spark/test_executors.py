"""`mode=executors` on Spark: none of 4,000 messages lost, none doubled, whatever dies."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.driver import started
from tests.spark.with_spark.killed import (
    EXPECTED,
    MESSAGES,
    WITHIN_S,
    Drivers,
    Scripted,
    bodies,
    committed,
    finished,
    until,
)

VISIBILITY_S = 10  # the least with mode=executors


@pytest.fixture
def given(sqs: Any, tmp_path: Path) -> dict[str, Any]:
    options = {
        "queueUrl": sqs.queue_url("q"),
        "endpoint": sqs.url,
        "stagingLocation": str(tmp_path / "staging"),
        "mode": "executors",
        "visibilityTimeout": str(VISIBILITY_S),
        "maxMessagesPerTrigger": "1000",
    }
    return {"options": options, "checkpoint": str(tmp_path / "checkpoint"), "out": str(tmp_path / "out")}


def emptied(sqs: Any) -> bool:
    return set(sqs.queues["q"].counts(time.time()).values()) == {0}


def workers() -> list[int]:
    """Our Spark's Python workers: forked by a daemon, named as it is, which is a child of our Java."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and _daemon(path.name) and _daemon(daemon := _parent(path.name)):
                found += [int(path.name)] if _parent(_parent(daemon)) == str(os.getpid()) else []
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _parent(process: str) -> str:
    return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[1]


def _daemon(process: str) -> bool:
    return b"pyspark.daemon" in Path("/proc", process, "cmdline").read_bytes()


class WorkersKilled(Scripted):
    """Kills our Spark's workers, and no driver."""

    killed = 0

    def reached(self) -> None:
        for worker in workers():
            os.kill(worker, signal.SIGKILL)
            self.killed += 1


def test_a_stream_delivers_each_message_once_and_empties_the_queue(
    spark: Any, sqs: Any, fill: Callable[[int], None], given: Any
) -> None:
    fill(MESSAGES)
    assert finished(spark, sqs, given) == EXPECTED
    assert emptied(sqs)
    rows = spark.read.schema("body string, batch int").parquet(given["out"])
    assert max(row["count"] for row in rows.groupBy("batch").count().collect()) <= 1000


def test_a_batch_has_a_task_for_each_segment_and_a_second_action_receives_nothing(
    spark: Any, sqs: Any, fill: Callable[[int], None], given: Any
) -> None:
    """A batch of several tasks, slower than the visibility timeout is left to be."""
    fill(25_000)
    del given["options"]["maxMessagesPerTrigger"]
    seen: list[tuple[int, int, int]] = []

    def twice(batch: Any, number: int) -> None:
        tasks, first = batch.rdd.getNumPartitions(), batch.count()
        receives = sqs.calls["ReceiveMessage"]
        seen.append((tasks, first, batch.count()))
        assert sqs.calls["ReceiveMessage"] == receives
        del number

    frame = spark.readStream.format("sqs").options(**given["options"]).load()
    query = frame.writeStream.option("checkpointLocation", given["checkpoint"]).foreachBatch(twice).start()
    try:
        until(lambda: query.exception() is not None or sum(first for _, first, _ in seen) >= 25_000)
        assert query.exception() is None
    finally:
        query.stop()
    assert seen[0][0] == 3
    assert all(first == second for _, first, second in seen)
    assert sum(first for _, first, _ in seen) == 25_000


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("ReceiveMessage", 30, True), id="after receive", marks=pytest.mark.slow),
        pytest.param(
            ("DeleteMessageBatch", 3, False), id="after stage", marks=pytest.mark.slow
        ),  # the first is the probe for permission
        pytest.param(("DeleteMessageBatch", 150, True), id="after delete", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_dies_in_a_task_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, moment: tuple[str, int, bool]
) -> None:
    action, call, done = moment
    watch = WorkersKilled(sqs, action, call=call, done=done)
    fill(MESSAGES)
    assert finished(spark, sqs, given) == EXPECTED
    assert watch.killed
    assert emptied(sqs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("ReceiveMessage", 130, True), id="after receive"),
        pytest.param(("DeleteMessageBatch", 150, False), id="after stage"),
        pytest.param(("DeleteMessageBatch", 150, True), id="after delete"),
    ],
)
def test_a_killed_driver_loses_and_doubles_nothing(  # noqa: PLR0917  fixtures
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers, moment: tuple[str, int, bool]
) -> None:
    """It and its executors, amid the second batch."""
    action, call, done = moment
    watch = Scripted(sqs, action, call=call, done=done)
    fill(MESSAGES)
    watch.driver = drivers.start(given)
    watch.driver.wait(WITHIN_S)
    assert watch.call <= 0
    assert finished(spark, sqs, given, maxMessagesPerTrigger="700") == EXPECTED
    assert emptied(sqs)


@pytest.mark.slow
def test_a_driver_killed_after_the_sinks_write_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    fill(MESSAGES)
    driver = drivers.start({**given, "die_in_batch": 1})
    driver.wait(WITHIN_S)
    assert committed(given) == 1
    assert finished(spark, sqs, given, maxMessagesPerTrigger="300", maxConnections="3") == EXPECTED


@pytest.mark.slow
def test_a_query_may_go_on_with_a_receiver_in_the_driver(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    """And back: `mode` is no part of an offset."""
    for number, mode in enumerate(("executors", "driver", "executors")):
        sqs.queues["q"].fill((f"{number} {each}" for each in range(500)), time.time())
        assert len(finished(spark, sqs, given, mode=mode)) == 500 * (number + 1)
    assert len(set(bodies(spark, given))) == 1500


@pytest.mark.slow
def test_of_two_drivers_the_older_is_fenced_and_nothing_is_lost_or_doubled(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    """On one checkpoint Spark's own log may stop the newer, where the older wrote its next offset first."""
    fill(MESSAGES // 2)
    older = drivers.start(given)
    until(lambda: len(bodies(spark, given)) == MESSAGES // 2)
    newer = started(spark, given)
    try:
        until(lambda: newer.lastProgress is not None or newer.exception() is not None)
        sqs.queues["q"].fill(EXPECTED[MESSAGES // 2 :], time.time())
        _, said = older.communicate(timeout=WITHIN_S)
        assert b"Fenced" in said or b"CONCURRENT" in said.upper()
    finally:
        newer.stop()
    assert finished(spark, sqs, given) == EXPECTED


def test_bad_records_are_counted_and_said_in_their_column(spark: Any, sqs: Any, given: Any) -> None:
    sqs.queues["q"].fill(['{"a": 1}', "nonsense", '{"a": 3}'], time.time())
    options = {**given["options"], "format": "json", "schema": "a int"}
    frame = spark.readStream.format("sqs").options(**options).load().selectExpr("value.a", "bad_record")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", given["checkpoint"])
    query = writer.start(given["out"])
    try:
        until(lambda: query.exception() is not None or emptied(sqs))
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(given["out"]).collect()
    assert sorted(row.a or 0 for row in rows) == [0, 1, 3]
    assert sum(row.bad_record is not None for row in rows) == 1


@pytest.mark.slow
def test_a_drain_reads_what_is_there(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    from sluice_spark import drain  # noqa: PLC0415  may be missing here

    fill(MESSAGES)
    frame = spark.readStream.format("sqs").options(**given["options"]).load().select("body")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", given["checkpoint"])
    drained = drain(writer.option("path", given["out"]), given["options"], within_s=WITHIN_S)
    assert (drained.messages, drained.empty) == (MESSAGES, True)
    assert sorted(row.body for row in spark.read.parquet(given["out"]).collect()) == EXPECTED


def read(spark: Any, given: Any, **options: str) -> list[str]:
    """A bounded read's rows."""
    wanted = {name: each for name, each in {**given["options"], **options}.items() if each}
    return sorted(row.body for row in spark.read.format("sqs").options(**wanted).load().select("body").collect())


@pytest.mark.slow
def test_bounded_reads_have_each_message_once_and_empty_the_queue(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    """A worker dies amid the first, after it has received: what it held is the next one's, once it is visible again."""
    fill(MESSAGES * 3)
    watch = WorkersKilled(sqs, "ReceiveMessage", call=30, done=True)
    found = read(spark, given, maxMessagesPerTrigger="")
    assert watch.killed
    assert len(found) == len(set(found))
    held = sqs.queues["q"]
    until(lambda: not held.counts(time.time())["ApproximateNumberOfMessagesNotVisible"])
    rest = read(spark, given, maxMessagesPerTrigger="")
    assert sorted(found + rest) == [f"{number:06d}" for number in range(MESSAGES * 3)]
    assert emptied(sqs)
    assert read(spark, given, queueUrl="") == sorted(found + rest)


def test_a_bounded_read_takes_no_more_than_its_limit(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    fill(MESSAGES)
    first = read(spark, given)
    assert len(first) == 1000
    assert sorted(first + read(spark, given, maxMessagesPerTrigger="")) == EXPECTED
    assert emptied(sqs)


def test_a_bounded_read_says_that_its_tasks_have_no_rate_in_common(spark: Any, given: Any) -> None:
    with pytest.raises(Exception, match="rateLimit"):
        read(spark, given, rateLimit="100")


def test_available_now_takes_all_that_is_there_in_batches(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    """Spark 4.0 and 4.1 run one batch then."""
    batches = MESSAGES // 1000 if tuple(map(int, spark.version.split(".")[:2])) >= (4, 2) else 1
    fill(MESSAGES)
    frame = spark.readStream.format("sqs").options(**given["options"]).load().select("body")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", given["checkpoint"])
    query = writer.trigger(availableNow=True).start(given["out"])
    assert query.awaitTermination(WITHIN_S)
    assert len(spark.read.parquet(given["out"]).collect()) == 1000 * batches
