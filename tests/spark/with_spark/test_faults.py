"""What the guarantee table of docs/spark.md promises, on Spark, with a sink that is idempotent by batch: none of 4,000
messages lost, none doubled."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.driver import kill_session, started
from tests.spark.with_spark.killed import (
    EXPECTED,
    MESSAGES,
    WITHIN_S,
    Drivers,
    Scripted,
    bodies,
    committed,
    finished,
    staged,
    until,
)
from tests.sqs.queues import Queue

VISIBILITY_S = 3


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


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("ReceiveMessage", 3, True), id="after receive", marks=pytest.mark.slow),
        # The first is the probe for permission.
        pytest.param(("DeleteMessageBatch", 2, False), id="after stage", marks=pytest.mark.slow),
        pytest.param(("DeleteMessageBatch", 30, True), id="after delete", marks=pytest.mark.slow),
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_query_that_fails_after_the_sinks_write_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    fill(MESSAGES)
    query = started(spark, {**given, "fail_in_batch": 1})
    until(lambda: query.exception() is not None)
    assert committed(given) == 1
    assert finished(spark, sqs, given, maxMessagesPerTrigger="300", maxConnections="3") == EXPECTED


@pytest.mark.slow
def test_a_driver_killed_after_the_sinks_write_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    driver = drivers.start({**given, "die_in_batch": 1})
    fill(MESSAGES)
    driver.wait(WITHIN_S)
    assert committed(given) == 1
    assert finished(spark, sqs, given, maxMessagesPerTrigger="300", maxConnections="3") == EXPECTED


@pytest.mark.slow
def test_a_driver_killed_after_the_commit_log_loses_and_doubles_nothing(
    spark: Any, sqs: Any, fill: Any, given: Any, drivers: Drivers
) -> None:
    driver = drivers.start(given)
    fill(MESSAGES)
    until(lambda: committed(given) > 0)
    kill_session(driver.pid)
    driver.wait(WITHIN_S)
    assert finished(spark, sqs, given, maxMessagesPerTrigger="5000") == EXPECTED


@pytest.mark.slow
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


@pytest.mark.slow
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
    from sluice_spark.options import parse_options  # noqa: PLC0415  may be missing here
    from sluice_spark.source.readers import SqsReader  # noqa: PLC0415  may be missing here

    fill(MESSAGES)
    del given["options"]["maxMessagesPerTrigger"]
    reader = SqsReader(parse_options(given["options"]))
    for partition in reader.partitions():
        first, twin = (list(reader.read(partition)) for _ in range(2))
        assert first == twin
        assert sum(batch.num_rows for batch in first) == MESSAGES
    receives = sqs.calls["ReceiveMessage"]
    list(reader.read(partition))
    assert sqs.calls["ReceiveMessage"] == receives


@pytest.mark.slow
def test_a_task_whose_worker_dies_is_tried_again_and_the_query_goes_on(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    marker = Path(given["out"]).with_name("died")
    fill(MESSAGES)
    assert finished(spark, sqs, {**given, "die_in_task": str(marker)}) == EXPECTED
    assert marker.exists()


@pytest.mark.slow
def test_an_idle_end_leaves_nothing_in_the_queue(spark: Any, sqs: Any, fill: Any, given: Any) -> None:
    fill(MESSAGES)
    assert finished(spark, sqs, given) == EXPECTED
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}


@pytest.mark.slow
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
