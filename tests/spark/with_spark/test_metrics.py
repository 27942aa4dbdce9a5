import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.spark.with_spark.killed import WITHIN_S, until

GOOD, BAD = [f'{{"n": {number}}}' for number in range(100, 599)], "no json at"


def messages(spark: Any, sqs: Any, tmp_path: Path, **options: Any) -> Any:
    given = {"queueUrl": sqs.queue_url("q"), "endpoint": sqs.url, "stagingLocation": str(tmp_path / "staging")}
    return spark.readStream.format("sqs").options(**given, waitTimeSeconds=1, **options).load()


def says(lines: list[Any], number: int) -> bool:
    return any(line["numRecordsIn"] == number for line in lines)


def test_progress_becomes_metrics_that_go_on_over_a_restart_and_count_bad_records(
    spark: Any, sqs: Any, tmp_path: Path
) -> None:
    from sluice_spark.decoding import decode  # noqa: PLC0415  may be missing here
    from sluice_spark.log.latest import read_status  # noqa: PLC0415  may be missing here
    from sluice_spark.log.store import FileStore  # noqa: PLC0415  may be missing here
    from sluice_spark.metrics.listener import MetricsListener, observe_metrics  # noqa: PLC0415  may be missing here
    from sluice_spark.metrics.measures import emf_lines  # noqa: PLC0415  may be missing here

    lines: list[dict[str, Any]] = []
    listener = MetricsListener(
        emf_lines(dimensions={"Stage": "test"}, write=lambda line: lines.append(json.loads(line))),
        staging_location=str(tmp_path / "staging"),
    )
    spark.streams.addListener(listener)
    try:
        for total, sent in ((200, GOOD[:200]), (500, [*GOOD[200:], BAD])):
            sqs.queues["q"].fill(sent, time.time())
            frame = observe_metrics(decode(messages(spark, sqs, tmp_path), "json", "n int"))
            writer = frame.writeStream.queryName("orders").option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.format("parquet").start(str(tmp_path / "out"))
            try:
                until(partial(says, lines, total))
                until(lambda: read_status(FileStore(tmp_path / "staging")) is not None)  # once a second, at most
            finally:
                query.stop()
    finally:
        spark.streams.removeListener(listener)
    counts = [line["numRecordsIn"] for line in lines]
    assert counts == sorted(counts)
    assert counts[-1] == 500
    last = next(line for line in lines if line["numRecordsIn"] == 500)
    assert (last["Query"], last["Source"], last["Stage"]) == ("orders", "0", "test")
    assert last["numBytesIn"] == len(BAD) * 500
    assert (last["numRecordsInErrors"], last["numSqsDeletionsFailed"]) == (1, 0)
    assert last["numRecordsInPerSecond"] > 0
    assert last["State"] in {"receiving", "idle"}  # what the first run's receiver said, or already the second's
    assert 0 <= last["currentFetchEventTimeLag"] <= last["currentEmitEventTimeLag"] < 1000 * WITHIN_S
    (directive,) = last["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["Query", "Source", "Stage"]]
    assert {metric["Name"] for metric in directive["Metrics"]} <= set(last)
