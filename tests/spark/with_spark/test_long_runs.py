"""What a query costs after a thousand batches is what it cost at first; and a backlog of a million is read once."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.spark.with_spark.killed import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BATCHES = 1000
MESSAGES = 5  # of a batch
BACKLOG = 1_000_000
WITHIN_S = 1500
TIMES_SLOWER = 2  # at most, at the median: others use the machine, too
RETAINED_S = 60  # between two removals of old segments


def test_a_thousand_batches_keep_the_staging_locations_size_and_the_time_of_a_batch(
    spark: Any, sqs: Any, tmp_path: Path
) -> None:
    """Each batch has a segment of its own, as it brings the messages of the next."""
    staging = tmp_path / "staging"
    options = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(staging), "retention": "1s"}
    at: list[float] = []
    files: list[int] = []

    def send() -> None:
        sqs.queues["q"].fill((f"{len(at)} {number}" for number in range(MESSAGES)), time.time())

    def count(batch: Any, number: int) -> None:
        if batch.count():  # the first may have none
            at.append(time.monotonic())
            files.append(sum(path.is_file() for path in staging.rglob("*")))
            send()
        del number

    frame = spark.readStream.format("sqs").options(**options, waitTimeSeconds=1).load()
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(count).start()
    try:
        send()
        until(lambda: query.exception() is not None or len(at) >= BATCHES, within_s=WITHIN_S)
        assert query.exception() is None
    finally:
        query.stop()
    took = [later - earlier for earlier, later in pairwise(at[100:])]  # once Java has compiled what runs often
    first, last = median(took[:200]), median(took[-200:])
    print(f"a batch: {first:.2f} s at first, {last:.2f} s at last; files: {files[::100]}")  # noqa: T201  pytest -s shows it
    assert last < TIMES_SLOWER * first
    assert max(files) < 4 * RETAINED_S / min(
        first, last
    )  # what two removals are apart, not what a thousand batches made


@pytest.fixture
def large() -> Iterator[str]:
    """An in-memory SQS in a process of its own, with a full queue; its URL."""
    command = [sys.executable, "-m", "tests.sqs", "--queues", "1"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            asked(url, "fill", queue="queue-0", count=BACKLOG, size=64)
            yield url
        finally:
            server.terminate()


def asked(url: str, command: str, **request: Any) -> Any:
    body = json.dumps(request).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/_memory/{command}", data=body, method="POST")) as answer:
        return json.loads(answer.read())


def test_a_backlog_of_a_million_is_read_once(spark: Any, large: str, tmp_path: Path) -> None:
    options = {
        "queueUrl": f"{large}/000000000000/queue-0",
        "endpoint": large,
        "stagingLocation": str(tmp_path / "staging"),
    }
    frame = spark.readStream.format("sqs").options(**options).load().selectExpr("message_id", "body")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "out"))
    try:
        until(lambda: query.exception() is not None or asked(large, "depths") == {"queue-0": 0}, within_s=WITHIN_S)
        query.processAllAvailable()
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == BACKLOG
    assert found.select("body").distinct().count() == found.select("message_id").distinct().count() == BACKLOG
