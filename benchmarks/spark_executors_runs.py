"""The measured half of `benchmarks.spark_executors`: one query in an environment that has Spark, prints JSON.

`python -m benchmarks.spark_executors_runs URL EXECUTORS MODE`, where URL is an in-memory SQS's. Spark's `local-cluster`
starts executors as a cluster does, each a program of its own with Python workers of its own. It writes into its home:
so that gets one for the run, made of links to PySpark's.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.spark_runs import SINK, TRIGGER, Server, command, cpu_by_process, cpu_of, descendants, session, until

QUEUES = 8
MESSAGES = 30_000  # of each queue
WARM_UP = 5_000
EXECUTOR_MB = 1024


def main() -> None:
    """One line of JSON."""
    server, executors, mode = Server(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory(prefix="sluice-spark-executors-") as folder:
        place = Path(folder)
        with cluster(executors, place / "spark") as spark:
            print(json.dumps(measured(spark, server, mode, place)), flush=True)


@contextmanager
def cluster(executors: int, home: Path) -> Iterator[SparkSession]:
    """One core each."""
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    with session(f"local-cluster[{executors},1,{EXECUTOR_MB}]", {"spark.executor.memory": f"{EXECUTOR_MB}m"}) as spark:
        yield spark


def measured(spark: SparkSession, server: Server, mode: str, place: Path) -> Mapping[str, float]:
    """Run a query that is warm until the queues are empty."""
    queues = [f"queue-{number}" for number in range(QUEUES)]
    options = {
        "queueUrl": ",".join(map(server.queue_url, queues)),
        "endpoint": server.url,
        "stagingLocation": str(place / "staging"),
        "mode": mode,
    }
    frame = spark.readStream.format("sqs").options(**options).load()
    writer = frame.writeStream.format(SINK).option("checkpointLocation", str(place / "checkpoint"))
    fill(server, queues, WARM_UP)
    query = writer.trigger(processingTime=TRIGGER).start()
    try:
        until(lambda: empty(server), query)
        query.processAllAvailable()
        requests, before, java = server.requests(), cpu_by_process(), java_cpu()
        fill(server, queues, MESSAGES)
        started = time.perf_counter()
        until(lambda: empty(server), query)
        seconds = time.perf_counter() - started
        query.processAllAvailable()
        used = sum(cpu - before.get(pid, 0.0) for pid, cpu in cpu_by_process().items())
        return {
            "messages": MESSAGES * QUEUES,
            "seconds": seconds,
            "python_cpu_s": used,
            "java_cpu_s": java_cpu() - java,
            "requests": server.requests() - requests,
        }
    finally:
        query.stop()


def fill(server: Server, queues: list[str], count: int) -> None:
    """As many messages in each."""
    for queue in queues:
        server.fill(queue, count)


def empty(server: Server) -> bool:
    """Everything is deleted."""
    return not any(server.control("depths").values())


def java_cpu() -> float:
    """CPU seconds of the driver's and the executors' Java."""
    return sum(cpu_of(pid) for pid in descendants() if "java" in command(pid).split("\0", 1)[0])


if __name__ == "__main__":
    main()
