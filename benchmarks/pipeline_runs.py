"""Runs the measurements of `benchmarks.pipeline` in an environment with Spark, and prints them as JSON.

`python -m benchmarks.pipeline_runs URL`, where URL is that of an in-memory SQS. Both read a full queue with the same
trigger on one Spark: first the source, with a sink that writes nothing, then the land job.
"""

import json
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sluice_jobs.land import QUERY_NAME, LandArguments, land
from sluice_jobs.session import configure_session

from benchmarks.spark_runs import (
    CONNECTIONS,
    MESSAGES,
    WARM_UP,
    Run,
    Server,
    by_source,
    measured,
    rows_of,
    session,
    until,
)

LATENCY_MS = 20


def main() -> None:
    """Run both; print one line of JSON."""
    server = Server(sys.argv[1])
    server.control("latency", seconds=LATENCY_MS / 1000)
    with session() as spark, tempfile.TemporaryDirectory(prefix="sluice-pipeline-") as folder:
        runs = [
            by_source(spark, server, "queue-0", LATENCY_MS, Path(folder) / "source"),
            by_land(configure_session(spark), server, "queue-1", Path(folder) / "land"),
        ]
    print(json.dumps({"runs": [asdict(run) for run in runs]}), flush=True)


def by_land(spark: SparkSession, server: Server, queue: str, place: Path) -> Run:
    """Run the job as `sluice_job.py land` does."""
    landing = LandArguments(
        source={
            "queueUrl": server.queue_url(queue),
            "endpoint": server.url,
            "stagingLocation": str(place / "staging"),
            "maxConnections": str(CONNECTIONS),
        },
        checkpoint=str(place / "checkpoint"),
        tables=str(place / "tables"),
        table_format="parquet",
        quarantine=str(place / "quarantine"),
        trigger_seconds=1.0,
    )
    failed: list[BaseException] = []

    def run() -> None:
        try:
            land(spark, landing)
        except BaseException as error:  # noqa: BLE001  shown where the benchmark waits
            failed.append(error)

    job = threading.Thread(target=run, daemon=True)
    job.start()
    query = _query(spark, failed)
    try:
        server.fill(queue, WARM_UP)
        until(lambda: rows_of(query) == WARM_UP and server.empty(queue), query)
        return measured(
            lambda: rows_of(query) == WARM_UP + MESSAGES and server.empty(queue),
            server,
            query,
            way="land",
            latency_ms=LATENCY_MS,
            messages=MESSAGES,
            queue=queue,
        )
    finally:
        query.stop()
        job.join()


def _query(spark: SparkSession, failed: list[BaseException]) -> Any:
    """Return the query after its start. Raises the error that prevents the start."""
    while True:
        if failed:
            raise failed[0]
        found = [each for each in spark.streams.active if each.name == QUERY_NAME]
        if found:
            return found[0]


if __name__ == "__main__":
    main()
