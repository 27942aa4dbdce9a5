"""Options, payloads, FIFO and draining, as Spark shows them."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
import sluice_spark

from tests.sqs.queues import Queue


def options(sqs: Any, tmp_path: Path, queue: str = "q", **more: str) -> dict[str, str]:
    place = {"queueUrl": sqs.queue_url(queue), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    return {**place, "waitTimeSeconds": "1", **more}


def send(sqs: Any, *bodies: str) -> None:
    sqs.queues["q"].fill(bodies, time.time())


def test_an_envelope_is_opened_and_bad_records_go_to_a_table(spark: Any, sqs: Any, tmp_path: Path) -> None:
    send(sqs, '{"Type": "Notification", "TopicArn": "t", "Message": "hello"}', "broken")
    given = options(sqs, tmp_path, envelope="sns", badRecords=str(tmp_path / "bad"))
    found = spark.read.format("sqs").options(**given).load().collect()
    assert [(row.body, row.envelope) for row in found] == [("hello", {"TopicArn": "t"})]
    bad = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert [(row.body, row.bad_reason[:8]) for row in bad] == [("broken", "not JSON")]


def test_several_queues_are_read_together(spark: Any, sqs: Any, tmp_path: Path) -> None:
    sqs.queues["r"] = Queue("r")
    send(sqs, "a")
    sqs.queues["r"].fill(["b"], time.time())
    both = f"{sqs.queue_url('q')}, {sqs.queue_url('r')}"
    rows = spark.read.format("sqs").options(**{**options(sqs, tmp_path), "QUEUEURL": both}).load().collect()
    assert {(row.body, row.queue_url.rpartition("/")[2]) for row in rows} == {("a", "q"), ("b", "r")}


def test_a_batch_may_end_before_the_queue_is_empty(spark: Any, sqs: Any, fill: Any, tmp_path: Path) -> None:
    fill(1000)
    given = options(sqs, tmp_path, maxMessagesPerTrigger="100", maxConnections="1")
    read = spark.read.format("sqs").options(**given).load().count()
    left = sqs.queues["q"].counts(time.time())
    assert 100 <= read < 1000
    assert read + left["ApproximateNumberOfMessages"] == 1000


@pytest.mark.slow
def test_the_rate_limit_may_change_with_a_restart(spark: Any, sqs: Any, fill: Any, tmp_path: Path) -> None:
    """Slow first, then fast: the same checkpoint and log, all messages once."""
    fill(600)
    for rate in ("100", "100000"):
        frame = spark.readStream.format("sqs").options(**options(sqs, tmp_path, rateLimit=rate)).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(tmp_path / "out"))
        try:
            deadline = time.monotonic() + 60
            wanted = 100 if rate == "100" else 600
            while spark.read.schema("body string").parquet(str(tmp_path / "out")).count() < wanted:
                assert time.monotonic() < deadline
                assert query.exception() is None
                query.processAllAvailable()
        finally:
            query.stop()
    bodies = [row.body for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(bodies) == [f"{number:06d}" for number in range(600)]


def test_a_fifo_groups_rows_are_in_one_task_in_order(spark: Any, sqs: Any, tmp_path: Path) -> None:
    queue = sqs.queues["q.fifo"] = Queue("q.fifo")
    for number in range(30):
        for group in ("g", "h", "i"):
            entry = {"MessageBody": f"{number:03d}", "MessageGroupId": group}
            queue.send({**entry, "MessageDeduplicationId": f"{group}{number}"}, time.time())
    rows = spark.read.format("sqs").options(**options(sqs, tmp_path, queue="q.fifo")).load().collect()
    for group in ("g", "h", "i"):
        assert [row.body for row in rows if row.message_group_id == group] == [f"{n:03d}" for n in range(30)]


@pytest.mark.slow
def test_a_drain_ends_while_a_producer_still_sends_and_the_next_brings_the_rest(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path
) -> None:
    visibility_s = sqs.queues["q"].visibility_s = 3
    fill(4000)
    ended = threading.Event()
    sender = boto3.client("sqs", endpoint_url=sqs.url)
    sent: list[str] = []

    def produce() -> None:
        while not ended.wait(0.5):
            sent.append(f"late {len(sent)}")
            sender.send_message(QueueUrl=sqs.queue_url("q"), MessageBody=sent[-1])

    producer = threading.Thread(target=produce)
    producer.start()
    given = options(sqs, tmp_path, maxMessagesPerTrigger="1500")

    def run() -> sluice_spark.DrainResult:
        frame = spark.readStream.format("sqs").options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sluice_spark.drain(writer.option("path", str(tmp_path / "out")), given, within_s=60)

    def sink() -> list[str]:
        return sorted(row.body for row in spark.read.parquet(str(tmp_path / "out")).collect())

    try:
        first = run()
    finally:
        ended.set()
        producer.join()
    filled = {f"{number:06d}" for number in range(4000)}
    assert first.empty
    assert filled <= set(sink())
    # the first run's receiver drains beside us, and what an unanswered receive took is in flight until its time-out,
    # which passes in the server's real time
    time.sleep(visibility_s + 2)
    log = [
        row.body for row in spark.read.format("sqs").options(stagingLocation=given["stagingLocation"]).load().collect()
    ]
    queued = [json.loads(sqs.queues["q"].encoded(stored))["Body"] for stored in sqs.queues["q"].known.values()]
    assert sorted(log + queued) == sorted([*filled, *sent])
    assert set(sink()) <= set(log)
    assert run().empty
    assert sink() == sorted([*filled, *sent])
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}
