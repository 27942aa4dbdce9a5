"""Runs the measurements of `benchmarks.spark_source` in an environment with Spark, and prints them as JSON.

`python -m benchmarks.spark_runs URL`, where URL is that of an in-memory SQS. Two ways from a queue to a sink run one
after the other on one Spark: the `sqs` source, and a `rate` stream whose foreachBatch receives, writes and deletes with
boto3. The sink reads all rows and writes none, so that Java's Parquet isn't measured. A run begins warm, with the
stream waiting at an empty queue, and ends when everything is written and deleted.
"""

import ast
import json
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import boto3
from botocore.config import Config
from pyspark.sql import DataFrame, SparkSession
from sluice_spark import register
from sluice_spark.options import BUFFER_DEFAULT_BYTES

LATENCIES_MS = (0, 20)
MESSAGE_BYTES = 1024
LARGE = {256 * 2**10: 1_200, 2**20: 300}  # messages by size: about 300 MiB, all in the queue at the start
LARGE_WARM_UP = 10
MESSAGES = 600_000  # about twenty seconds, so that the last trigger has little weight
BOTO3_MESSAGES = {0: 12_000, 20: 1_000}
WARM_UP = 300_000  # ten triggers, during which Java compiles its hot code with half a core
BOTO3_WARM_UP = 500
BOTO3_BATCH = 5_000  # the most messages of a foreachBatch call
CONNECTIONS = 256  # at 20 ms per call, 64 carry at most 32,000 messages per second, and less while the process is busy
LOOK_EVERY_S = 0.05
WITHIN_S = 240.0
SINK = "noop"
TRIGGER = "1 second"  # of both; usual for throughput, because each micro-batch takes Java about 0.2 s
SCHEMA = "message_id string, body string"
SOURCE_RUNNER = "python_streaming_source_runner"
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. With the boto3 loop, the driver-side process is the driver itself: ignore its memory."""

    way: str
    latency_ms: int
    messages: int
    seconds: float
    python_cpu_s: float
    requests: int
    message_bytes: int = MESSAGE_BYTES
    idle_rss_mb: float = 0.0
    peak_rss_mb: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """The in-memory SQS, with its control calls."""

    url: str

    def control(self, command: str, **request: Any) -> Any:
        """Make a control call. Raises URLError."""
        body = json.dumps(request).encode()
        asked = urllib.request.Request(f"{self.url}/_memory/{command}", data=body, method="POST")
        with urllib.request.urlopen(asked) as answer:
            return json.loads(answer.read())

    def queue_url(self, name: str) -> str:
        """Return the URL of a queue that exists from the start."""
        return f"{self.url}/000000000000/{name}"

    def fill(self, name: str, count: int, size: int = MESSAGE_BYTES) -> None:
        """Fill the queue; all messages are in it on return."""
        self.control("fill", queue=name, count=count, size=size)

    def empty(self, name: str) -> bool:
        """Return whether all messages are deleted."""
        return bool(self.control("depths")[name] == 0)

    def requests(self) -> int:
        """Return the number of requests so far, of all kinds."""
        return sum(self.control("calls").values())


def main() -> None:
    """Run every way at every latency; print one line of JSON."""
    server = Server(sys.argv[1])
    with session() as spark, tempfile.TemporaryDirectory(prefix="sluice-spark-source-") as folder:
        runs = []
        for number, latency_ms in enumerate(LATENCIES_MS):
            server.control("latency", seconds=latency_ms / 1000)
            place = Path(folder) / str(latency_ms)
            runs.append(by_source(spark, server, f"queue-{2 * number}", latency_ms, place / "source"))
            runs.append(by_boto3(spark, server, f"queue-{2 * number + 1}", latency_ms, place / "boto3"))
        server.control("latency", seconds=0)
        for number, size in enumerate(LARGE, 2 * len(LATENCIES_MS)):
            runs.append(by_source(spark, server, f"queue-{number}", 0, Path(folder) / str(size), size))
    found = {"runs": [asdict(run) for run in runs], "bytes_limit_mb": BUFFER_DEFAULT_BYTES / MIB}
    print(json.dumps(found), flush=True)


@contextmanager
def session(master: str = "local[2]", settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Create a local session, with two cores unless configured otherwise, and this Python for workers."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("benchmark")
    for name, value in {
        **settings,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def by_source(  # noqa: PLR0917  of one run
    spark: SparkSession, server: Server, queue: str, latency_ms: int, place: Path, size: int = MESSAGE_BYTES
) -> Run:
    """Run the `sqs` source; with fewer large messages, as only their memory is measured."""
    warm_up, messages = (LARGE_WARM_UP, LARGE[size]) if size in LARGE else (WARM_UP, MESSAGES)
    options = {
        "queueUrl": server.queue_url(queue),
        "endpoint": server.url,
        "stagingLocation": str(place / "staging"),
        "maxConnections": str(CONNECTIONS),
    }
    frame = spark.readStream.format("sqs").options(**options).load()
    others = set(pythons())  # an earlier query's process may still wait for its last receive
    writer = frame.writeStream.format(SINK).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(processingTime=TRIGGER).start()
    try:
        server.fill(queue, warm_up, size)
        until(lambda: rows_of(query) == warm_up and server.empty(queue), query)
        runner = next(pid for pid in set(pythons()) - others if SOURCE_RUNNER in command(pid))
        idle_rss = memory_mb(runner, "VmRSS")
        run = measured(
            lambda: rows_of(query) == warm_up + messages and server.empty(queue),
            server,
            query,
            way="source",
            latency_ms=latency_ms,
            messages=messages,
            queue=queue,
            size=size,
        )
        return Run(**{**asdict(run), "idle_rss_mb": idle_rss, "peak_rss_mb": memory_mb(runner, "VmHWM")})
    finally:
        query.stop()


def by_boto3(spark: SparkSession, server: Server, queue: str, latency_ms: int, place: Path) -> Run:
    """Run the boto3 loop."""
    client = boto3.client("sqs", endpoint_url=server.url, region_name="eu-west-1", config=Config(user_agent="loop"))
    queue_url, written = server.queue_url(queue), [0]

    def drain(_: DataFrame, __: int) -> None:
        rows: list[tuple[str, str]] = []
        handles: list[list[Any]] = []
        while len(rows) < BOTO3_BATCH:
            answer = client.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            messages = answer.get("Messages")
            if not messages:
                break
            rows += [(message["MessageId"], message["Body"]) for message in messages]
            handles.append([{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)])
        if rows:
            spark.createDataFrame(rows, SCHEMA).write.format(SINK).mode("append").save()
        for entries in handles:
            client.delete_message_batch(QueueUrl=queue_url, Entries=entries)
        written[0] += len(rows)

    server.fill(queue, BOTO3_WARM_UP)
    ticks = spark.readStream.format("rate").load().writeStream.foreachBatch(drain)
    query = ticks.option("checkpointLocation", str(place / "checkpoint")).trigger(processingTime=TRIGGER).start()
    try:
        until(lambda: written[0] == BOTO3_WARM_UP, query)
        messages = BOTO3_MESSAGES[latency_ms]
        return measured(
            lambda: written[0] == BOTO3_WARM_UP + messages,
            server,
            query,
            way="boto3",
            latency_ms=latency_ms,
            messages=messages,
            queue=queue,
        )
    finally:
        query.stop()


def measured(
    done: Callable[[], bool],
    server: Server,
    query: Any,
    *,
    way: str,
    latency_ms: int,
    messages: int,
    queue: str,
    size: int = MESSAGE_BYTES,
) -> Run:
    """Fill the queue, and wait until it is processed."""
    requests, before = server.requests(), cpu_by_process()
    server.fill(queue, messages, size)
    started = time.perf_counter()
    until(done, query)
    seconds = time.perf_counter() - started
    used = sum(cpu - before.get(pid, 0.0) for pid, cpu in cpu_by_process().items())
    return Run(
        way=way,
        latency_ms=latency_ms,
        messages=messages,
        seconds=seconds,
        python_cpu_s=used,
        requests=server.requests() - requests,
        message_bytes=size,
    )


def until(done: Callable[[], bool], query: Any) -> None:
    """Wait for the condition, checking rarely to save CPU. Raises the query's error, or TimeoutError."""
    deadline = time.monotonic() + WITHIN_S
    while not done():
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {WITHIN_S} s: {query.lastProgress}")
        time.sleep(LOOK_EVERY_S)


def rows_of(query: Any) -> int:
    """Return the row up to which the last finished batch read. PySpark formats an offset as a Python dict."""
    progress = query.lastProgress
    end = progress and progress["sources"][0]["endOffset"]
    return int(ast.literal_eval(end)["numRecordsIn"]) if end else 0


def cpu_by_process() -> Mapping[int, float]:
    """Return the CPU seconds of this process and of all Python processes below it: driver, source and idle workers."""
    return {pid: cpu_of(pid) for pid in pythons()}


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of one process so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def pythons() -> list[int]:
    """List this process and its Python descendants."""
    return [pid for pid in descendants() if "python" in command(pid).split("\0", 1)[0]]


def descendants() -> set[int]:
    """List this process and all its descendants."""
    alive = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    parents = {pid: int(_stat(pid)[1]) for pid in alive}
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return mine


def command(pid: int) -> str:
    """Return a process's arguments, separated by zero bytes; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def memory_mb(pid: int, name: str) -> float:
    """Return a process's memory in MB: VmRSS for the current value, VmHWM for the peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's stat after its name, from the state on; zeros if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 13


if __name__ == "__main__":
    main()
