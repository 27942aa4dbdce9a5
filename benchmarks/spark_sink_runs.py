"""Runs the measurements of `benchmarks.spark_sink` in an environment with Spark, and prints them as JSON.

`python -m benchmarks.spark_sink_runs URL`, where URL is that of an in-memory SQS. Two ways from a frame to a queue run
one after the other on one Spark: the `sqs` sink, and a foreachPartition that sends batches of ten with boto3. Spark
generates the rows, so that no files are measured. A run begins warm.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_runs import MESSAGE_BYTES, Server, cpu_by_process, session

LATENCIES_MS = (0, 20)
MESSAGES = 200_000  # about ten seconds
BOTO3_MESSAGES = {0: 20_000, 20: 4_000}
WARM_UP = 20_000
BOTO3_WARM_UP = 1_000
IN_PART_MESSAGES = 20_000
IN_PART_CALLS = 100  # calls in which every second entry fails
TASKS = 2
CONNECTIONS = 64  # of each task: enough for 20 ms per call
BATCH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run."""

    way: str
    latency_ms: int
    messages: int
    seconds: float
    python_cpu_s: float
    requests: int


def main() -> None:
    """Run every way at every latency, and partly failing batches; print one line of JSON."""
    server = Server(sys.argv[1])
    with session() as spark:
        runs = []
        for number, latency_ms in enumerate(LATENCIES_MS):
            server.control("latency", seconds=latency_ms / 1000)
            runs.append(by_sink(spark, server, f"queue-{2 * number}", latency_ms))
            runs.append(by_boto3(spark, server, f"queue-{2 * number + 1}", latency_ms))
        server.control("latency", seconds=0)
        in_part = {
            "busy": taken_in_part(spark, server, "queue-1", status=500),
            "refused": taken_in_part(spark, server, "queue-3", status=400),
        }
    print(json.dumps({"runs": [asdict(run) for run in runs], "in_part": in_part}), flush=True)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Generate rows with different bodies."""
    body = f"rpad(format_string('%012d', id), {MESSAGE_BYTES}, 'x') body"
    return spark.range(0, count, 1, TASKS).selectExpr(body)


def by_sink(spark: SparkSession, server: Server, queue: str, latency_ms: int) -> Run:
    """Run the `sqs` sink."""

    def write(count: int) -> None:
        _write(rows(spark, count), server, queue)

    write(WARM_UP)
    return measured(write, server, way="sink", latency_ms=latency_ms, messages=MESSAGES, queue=queue)


def by_boto3(spark: SparkSession, server: Server, queue: str, latency_ms: int) -> Run:
    """Run the boto3 loop."""
    queue_url, endpoint = server.queue_url(queue), server.url

    def send(part: Iterable[Any]) -> None:
        import boto3  # noqa: PLC0415  in Spark's worker, as this function is sent there by value

        client, left = boto3.client("sqs", endpoint_url=endpoint, region_name="eu-west-1"), iter(part)
        while batch := list(islice(left, BATCH)):
            entries: Any = [{"Id": str(number), "MessageBody": row.body} for number, row in enumerate(batch)]
            answer = client.send_message_batch(QueueUrl=queue_url, Entries=entries)
            if answer.get("Failed"):
                raise RuntimeError(answer["Failed"])

    def write(count: int) -> None:
        rows(spark, count).foreachPartition(send)

    write(BOTO3_WARM_UP)
    messages = BOTO3_MESSAGES[latency_ms]
    return measured(write, server, way="boto3", latency_ms=latency_ms, messages=messages, queue=queue)


def measured(
    write: Callable[[int], None], server: Server, *, way: str, latency_ms: int, messages: int, queue: str
) -> Run:
    """Write, and check that all messages are in the queue."""
    requests, before, there = server.requests(), cpu_by_process(), depth(server, queue)
    started = time.perf_counter()
    write(messages)
    seconds = time.perf_counter() - started
    used = sum(cpu - before.get(pid, 0.0) for pid, cpu in cpu_by_process().items())
    arrived = depth(server, queue) - there
    if arrived != messages:
        raise RuntimeError(f"{messages} rows were written, {arrived} messages came")
    return Run(
        way=way,
        latency_ms=latency_ms,
        messages=messages,
        seconds=seconds,
        python_cpu_s=used,
        requests=server.requests() - requests,
    )


def taken_in_part(spark: SparkSession, server: Server, queue: str, *, status: int) -> Mapping[str, float]:
    """Write while every second entry of some batches fails; return the messages in the queue, and the calls."""
    requests, there = server.requests(), depth(server, queue)
    server.control("failures", action="SendMessageBatch", how="partial", count=IN_PART_CALLS, status=status)
    _write(rows(spark, IN_PART_MESSAGES), server, queue, failOnError="false")
    arrived = depth(server, queue) - there
    return {
        "failed": IN_PART_CALLS * BATCH // 2,
        "missing": max(0, IN_PART_MESSAGES - arrived),
        "extra": max(0, arrived - IN_PART_MESSAGES),
        "requests_per_message": (server.requests() - requests) / IN_PART_MESSAGES,
    }


def depth(server: Server, queue: str) -> int:
    """Return the number of messages in the queue."""
    return int(server.control("depths")[queue])


def _write(frame: DataFrame, server: Server, queue: str, **more: str) -> None:
    options = {"queueUrl": server.queue_url(queue), "endpoint": server.url, "maxConnections": str(CONNECTIONS), **more}
    frame.write.format("sqs").mode("append").options(**options).save()


if __name__ == "__main__":
    main()
