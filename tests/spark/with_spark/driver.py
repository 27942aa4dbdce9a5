"""A streaming query as a program of its own, so that a test can kill all of it. Arguments: one JSON object.

`options` of the source, `checkpoint`, `out` (of the idempotent sink), and optionally `die_in_batch`: the batch after
whose write, before its commit, every process of this session is killed; `fail_in_batch`: the one where the query fails
at the same moment; `die_in_task`: a file that the first task makes before its worker dies; `twin_in`: a folder where
tasks note that one failed, and that a slow one has a twin; or `master` and `conf`: a cluster's, and settings there.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TWIN_WITHIN_S = 120


class Broken(Exception):
    """A query that was told to fail in this batch."""


def kill_session(session: int) -> None:
    """SIGKILL to each process of the session: the JVM, Spark's Python processes (a group of their own), and ourselves
    last."""
    own = os.getpid()
    members = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    for process in [p for p in members if p != own and _session_of(p) == session] + [own] * (os.getsid(0) == session):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue


def started(spark: Any, given: dict[str, Any]) -> Any:
    """The query: every batch into a folder of its own, written anew when the batch comes again."""
    die_in_batch = given.get("die_in_batch")

    def write(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{given['out']}/batch={number}")
        if number == die_in_batch:
            kill_session(os.getsid(0))
        if number == given.get("fail_in_batch"):
            raise Broken(number)

    frame = spark.readStream.format("sqs").options(**given["options"]).load().select("body")
    if marker := given.get("die_in_task"):
        from pyspark.sql.functions import udf  # noqa: PLC0415  kill_session is imported where Spark may be missing

        frame = frame.withColumn("body", udf(_dying_once(marker), "string")("body"))
    if folder := given.get("twin_in"):
        from pyspark.sql.functions import udf  # noqa: PLC0415  as above

        frame = frame.withColumn("body", udf(_with_a_twin(Path(folder)), "string")("body"))
    return frame.writeStream.option("checkpointLocation", given["checkpoint"]).foreachBatch(write).start()


def _dying_once(marker: str) -> Callable[[str], str]:
    def through(body: str) -> str:
        if not Path(marker).exists():
            Path(marker).touch()
            os._exit(1)
        return body

    return through


def _with_a_twin(folder: Path) -> Callable[[str], str]:
    """The first task waits until it has a speculative twin, the second fails at its first attempt."""

    def through(body: str) -> str:
        from pyspark import TaskContext  # noqa: PLC0415  as above

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and not context.attemptNumber() and not (folder / "failed").exists():
            (folder / "failed").touch()
            raise Broken(body)
        if not context.partitionId() and not (folder / "twin").exists():
            if context.attemptNumber():
                (folder / "twin").touch()
            deadline = time.monotonic() + TWIN_WITHIN_S
            while not (folder / "twin").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        return body

    return through


def _session_of(process: int) -> int:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return -1


def main() -> None:
    """Runs until the query fails, or somebody kills us."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  kill_session is imported where Spark may be missing
    from sluice_spark import register  # noqa: PLC0415  as above

    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(given.get("master", "local[2, 4]")).config("spark.ui.enabled", "false")
    for name in ("host", "bindAddress"):
        builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
    for name, value in given.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    started(spark, given).awaitTermination()


if __name__ == "__main__":
    main()
