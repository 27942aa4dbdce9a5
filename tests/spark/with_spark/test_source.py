import ast
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.killed import WITHIN_S, until

MESSAGES = 20_000


def reader(spark_reader: Any, sqs: Any, staging: Path, **options: Any) -> Any:
    given = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(staging), "waitTimeSeconds": 1}
    return spark_reader.format("sqs").options(**given | options)


def stream(spark: Any, sqs: Any, tmp_path: Path, **options: Any) -> Any:
    frame = reader(spark.readStream, sqs, tmp_path / "staging", **options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    return writer.start(str(tmp_path / "out"))


def bodies(spark: Any, tmp_path: Path) -> list[str]:
    return [row.body for row in spark.read.schema("body string").parquet(str(tmp_path / "out")).collect()]


def rows_in(query: Any) -> int:
    """How far the query's last batch reached, or its error. PySpark gives an offset as the text of a Python dict."""
    if failed := query.exception():
        raise failed
    progress = query.lastProgress
    end = progress and progress["sources"][0]["endOffset"]
    return int(ast.literal_eval(end)["numRecordsIn"]) if end else 0


def test_a_stream_stopped_amid_receives_goes_on_and_delivers_each_message_once(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path
) -> None:
    """With maxReceiveCount 1 SQS would move to a dead-letter queue what was received and comes back after the stop."""
    queue = sqs.queues["q"]
    queue.visibility_s = 3600
    fill(MESSAGES)
    query = stream(spark, sqs, tmp_path, rateLimit=1_000)  # it isn't done when Spark, cold, stops after ten seconds
    try:
        until(lambda: query.exception() is not None or len(queue.known) < MESSAGES)
    finally:
        query.stop()
    until(lambda: not queue.held)
    assert queue.known
    assert not any(message.received for message in queue.known.values())
    query = stream(spark, sqs, tmp_path, maxMessagesPerTrigger=15_000)
    try:
        until(lambda: rows_in(query) == MESSAGES)
        assert max(progress["numInputRows"] for progress in query.recentProgress) <= 15_000
        until(lambda: set(queue.counts(time.time()).values()) == {0})
    finally:
        query.stop()
    found = spark.read.schema("body string, receive_count int").parquet(str(tmp_path / "out")).collect()
    assert sorted(row.body for row in found) == [f"{number:06d}" for number in range(MESSAGES)]
    assert {row.receive_count for row in found} == {1}


def test_a_batch_is_read_until_the_queue_is_empty_and_read_again_from_the_log(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path
) -> None:
    fill(500)
    assert reader(spark.read, sqs, tmp_path / "staging").load().count() == 500
    assert set(sqs.queues["q"].counts(time.time()).values()) == {0}
    log = spark.read.format("sqs").option("stagingLocation", str(tmp_path / "staging")).load()
    row = log.orderBy("body").first()
    assert (log.count(), row.body, row.receive_count, row.attributes) == (500, "000000", 1, {})


def test_two_actions_on_one_micro_batch_see_the_same_rows(spark: Any, sqs: Any, fill: Any, tmp_path: Path) -> None:
    fill(300)
    counts: list[tuple[int, int]] = []
    frame = reader(spark.readStream, sqs, tmp_path / "staging").load()
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(lambda batch, _: counts.append((batch.count(), batch.count()))).start()
    try:
        until(lambda: sum(first for first, _ in counts) >= 300)
    finally:
        query.stop()
    assert all(first == second for first, second in counts)


def test_an_unknown_option_is_named_at_plan_time(spark: Any, sqs: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="maxmessagepertrigger"):
        reader(spark.readStream, sqs, tmp_path, maxMessagePerTrigger=1).load()


def test_a_queue_that_is_not_there_fails_the_query_with_the_cause(spark: Any, sqs: Any, tmp_path: Path) -> None:
    del sqs.queues["q"]
    query = stream(spark, sqs, tmp_path)
    with pytest.raises(Exception, match="QueueDoesNotExist"):
        query.awaitTermination(WITHIN_S)


def test_available_now_takes_what_is_there_in_several_batches_and_ends(
    spark: Any, sqs: Any, fill: Any, tmp_path: Path
) -> None:
    if spark.version.startswith(("4.0.", "4.1.")):
        pytest.skip("Spark 4.0 and 4.1 run one micro-batch of a Python source: drain is there for them")
    fill(2000)
    frame = reader(spark.readStream, sqs, tmp_path / "staging", maxMessagesPerTrigger=700).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(WITHIN_S)
    assert sorted(bodies(spark, tmp_path)) == [f"{number:06d}" for number in range(2000)]
    assert len([each for each in query.recentProgress if each["numInputRows"]]) > 1
