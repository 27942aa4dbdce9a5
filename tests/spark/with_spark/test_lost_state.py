"""What a user gets when two queries share what is one's alone, and when the checkpoint or the staging is lost."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.with_spark.driver import started
from tests.spark.with_spark.killed import EXPECTED, MESSAGES, bodies, finished, until


@pytest.fixture
def given(sqs: Any, tmp_path: Path) -> dict[str, Any]:
    options = {
        "queueUrl": sqs.queue_url("q"),
        "endpoint": sqs.url,
        "stagingLocation": str(tmp_path / "staging"),
        "visibilityTimeout": "10",
        "waitTimeSeconds": "1",
        "maxMessagesPerTrigger": "1000",
    }
    return {"options": options, "checkpoint": str(tmp_path / "checkpoint"), "out": str(tmp_path / "out")}


def another(given: dict[str, Any], **options: str) -> dict[str, Any]:
    """A query with a checkpoint and a table of its own."""
    places = {name: given[name] + "-2" for name in ("checkpoint", "out")}
    return {**given, **places, "options": {**given["options"], **options}}


@pytest.mark.slow
def test_of_two_queries_on_one_staging_location_the_newer_has_every_row_and_the_older_fails(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    """Once it receives something. The newer reads what is retained, so also what the older has in its table."""
    fill(MESSAGES // 2)
    sent = EXPECTED[: MESSAGES // 2]
    older = started(spark, given)
    until(lambda: older.exception() is not None or bodies(spark, given) == sent)
    newer = started(spark, another(given))

    def send_more() -> None:
        more = EXPECTED[len(sent) : len(sent) + 20]
        sent.extend(more)
        sqs.queues["q"].fill(more, time.time())

    try:
        until(lambda: newer.lastProgress is not None or newer.exception() is not None)
        while older.exception() is None:
            send_more()
            until(lambda: set(sqs.queues["q"].counts(time.time()).values()) == {0})
        until(lambda: newer.exception() is not None or len(bodies(spark, another(given))) >= len(sent))
    finally:
        older.stop()
        newer.stop()
    assert "Fenced" in str(older.exception())
    assert bodies(spark, another(given)) == sent
    assert set(EXPECTED[: MESSAGES // 2]) <= set(bodies(spark, given)) <= set(sent)


@pytest.mark.slow
def test_two_queries_on_one_queue_divide_its_messages(
    spark: Any, sqs: Any, fill: Any, given: Any, tmp_path: Path
) -> None:
    other = another(given, stagingLocation=str(tmp_path / "staging-2"))
    queries = [started(spark, each) for each in (given, other)]
    try:
        fill(MESSAGES)
        until(
            lambda: (
                any(query.exception() is not None for query in queries)
                or len(bodies(spark, given)) + len(bodies(spark, other)) >= MESSAGES
            )
        )
    finally:
        for query in queries:
            query.stop()
    assert sorted(bodies(spark, given) + bodies(spark, other)) == EXPECTED


@pytest.mark.slow
def test_a_query_whose_checkpoint_is_lost_reads_all_that_is_retained_again(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    """Into a table that is new, too: each message once. Into the old one these rows would be appended."""
    fill(MESSAGES // 2)
    assert finished(spark, sqs, given) == EXPECTED[: MESSAGES // 2]
    shutil.rmtree(given["checkpoint"])
    sqs.queues["q"].fill(EXPECTED[MESSAGES // 2 :], time.time())
    assert finished(spark, sqs, another(given)) == EXPECTED


@pytest.mark.slow
def test_a_query_whose_staging_location_is_lost_fails_and_takes_nothing_from_the_queue(
    spark: Any, sqs: Any, fill: Any, given: Any
) -> None:
    """Begun anew, with a new checkpoint, it reads what the queue still has; what was committed is in the table."""
    fill(MESSAGES // 2)
    assert finished(spark, sqs, given) == EXPECTED[: MESSAGES // 2]
    shutil.rmtree(given["options"]["stagingLocation"])
    sqs.queues["q"].fill(EXPECTED[MESSAGES // 2 :], time.time())
    query = started(spark, given)
    until(lambda: query.exception() is not None)
    assert "SegmentMissing" in str(query.exception())
    assert sqs.queues["q"].counts(time.time())["ApproximateNumberOfMessages"] == MESSAGES // 2
    assert finished(spark, sqs, another(given)) == EXPECTED[MESSAGES // 2 :]
