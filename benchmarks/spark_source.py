"""Measures the Spark source's rate and cost, relative to a boto3 loop in foreachBatch.

`python -m benchmarks.spark_source [--json]`: an in-memory SQS in its own process, at 0 and 20 ms per call. Messages of
1 KiB go from a full queue to a sink that reads all rows and writes nothing; then messages of 256 KiB and 1 MiB show the
memory.

Spark runs in the environment of `make test-spark`, which is built if it is missing. CPU time is that of Spark's Python
processes (driver, source and workers), without Java and the queue.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report

ROOT = Path(__file__).parents[1]
SPARK = "4.1.1"
LATENCIES_MS = (0, 20)
QUEUES = 6  # one for each way and latency, and one for each size of large messages
MESSAGE_BYTES, LARGE_BYTES = 2**10, (256 * 2**10, 2**20)
# Limits, on a quiet machine with two cores.
MSGS_PER_S, CPU_S_PER_100K, REQUESTS_PER_MESSAGE, RATIO_TO_BOTO3 = {0: 45_000, 20: 40_000}, 1.6, 0.205, 8
BESIDE_BUFFER_MB = 128 * 10**6 / 2**20
WITHIN_S = 600
KEYS = {"AWS_ACCESS_KEY_ID": "AKIABENCHMARK", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "eu-west-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way at one latency, in numbers per message and second."""

    msgs_per_s: float
    cpu_s_per_100k: float
    requests_per_message: float
    idle_rss_mb: float
    peak_rss_mb: float

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> "Measured":
        """Build it from the output of `spark_runs`."""
        messages = run["messages"]
        return cls(
            msgs_per_s=messages / run["seconds"],
            cpu_s_per_100k=run["python_cpu_s"] / messages * 100_000,
            requests_per_message=run["requests"] / messages,
            idle_rss_mb=run["idle_rss_mb"],
            peak_rss_mb=run["peak_rss_mb"],
        )


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run all measurements."""
    console = Console(stderr=True)
    with console.status("installing Spark") as status:
        python = spark_python()
        status.update("an in-memory SQS, and Spark on it")
        with memory_sqs() as url:
            found = runs(python, url)
    small = [run for run in found["runs"] if run["message_bytes"] == MESSAGE_BYTES]
    large = {run["message_bytes"]: Measured.of(run) for run in found["runs"] if run["message_bytes"] != MESSAGE_BYTES}
    measured = {(run["way"], run["latency_ms"]): Measured.of(run) for run in small}
    limit = found["bytes_limit_mb"]
    figures = _speed(measured) | _cost(measured) | _memory(measured, limit) | _large(large, limit)
    series = {
        name: {str(latency): f"{name}_{latency}" for latency in LATENCIES_MS}
        for name in ("msgs_per_s", "python_cpu_s_per_100k", "boto3_msgs_per_s")
    }
    report("Spark source: messages of 1 KiB", figures, as_json=as_json, series=series)


def spark_python() -> Path:
    """Return the Python of the environment with Spark, built as `make test-spark` does."""
    subprocess.run(["make", f"SPARK={SPARK}", f"build/spark-{SPARK}/ready"], cwd=ROOT, check=True, stdout=sys.stderr)
    return ROOT / "build" / f"spark-{SPARK}" / "bin" / "python"


@contextmanager
def memory_sqs(queues: int = QUEUES) -> Iterator[str]:
    """Yield the URL of an in-memory SQS."""
    command = [sys.executable, "-m", "tests.sqs", "--queues", str(queues)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def runs(python: Path, url: str, *arguments: str, module: str = "benchmarks.spark_runs") -> dict[str, Any]:
    """Run the module and return its output. Raises CalledProcessError; Spark's error is on standard error."""
    environment = os.environ | KEYS | {"PYTHONPATH": f"{ROOT / 'spark'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [python, "-m", module, url, *arguments],
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=WITHIN_S,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _speed(measured: Mapping[tuple[str, int], Measured]) -> dict[str, Figure]:
    figures = {}
    ratios = []
    for latency in LATENCIES_MS:
        ours, loop = measured["source", latency], measured["boto3", latency]
        ratios.append(ours.msgs_per_s / loop.msgs_per_s)
        figures[f"msgs_per_s_{latency}"] = Figure(
            name=f"messages per second, {latency} ms per call; at least {MSGS_PER_S[latency]:,}",
            value=ours.msgs_per_s,
            ratio=ratios[-1],
            compared_to="a boto3 loop in foreachBatch",
        )
        figures[f"boto3_msgs_per_s_{latency}"] = Figure(
            name=f"boto3 loop: messages per second, {latency} ms per call", value=loop.msgs_per_s
        )
    figures["ratio_to_boto3"] = Figure(name=f"lowest of these ratios; at least {RATIO_TO_BOTO3}", value=min(ratios))
    return figures


def _cost(measured: Mapping[tuple[str, int], Measured]) -> dict[str, Figure]:
    figures = {}
    for latency in LATENCIES_MS:
        ours, loop = measured["source", latency], measured["boto3", latency]
        figures[f"python_cpu_s_per_100k_{latency}"] = Figure(
            name=f"CPU seconds of Python per 100,000 messages, {latency} ms per call",
            value=ours.cpu_s_per_100k,
            limit=CPU_S_PER_100K,
            ratio=ours.cpu_s_per_100k / loop.cpu_s_per_100k,
            compared_to=f"the boto3 loop's {loop.cpu_s_per_100k:.1f}",
        )
    worst = max(measured["source", latency].requests_per_message for latency in LATENCIES_MS)
    return figures | {
        "requests_per_message": Figure(
            name="requests per message",
            value=worst,
            limit=REQUESTS_PER_MESSAGE,
            ratio=worst / measured["boto3", LATENCIES_MS[0]].requests_per_message,
            compared_to="the boto3 loop",
        )
    }


def _memory(measured: Mapping[tuple[str, int], Measured], bytes_limit_mb: float) -> dict[str, Figure]:
    largest = max((measured["source", latency] for latency in LATENCIES_MS), key=lambda each: each.peak_rss_mb)
    idle = min(measured["source", latency].idle_rss_mb for latency in LATENCIES_MS)
    return {
        "peak_rss_mb": Figure(name="peak memory of the source's process, MiB", value=largest.peak_rss_mb),
        "idle_rss_mb": Figure(name="memory of that process before the run, MiB", value=idle),
        "bytes_limit_mb": Figure(name="limit of buffered messages, MiB", value=bytes_limit_mb),
    }


def _large(measured: Mapping[int, Measured], bytes_limit_mb: float) -> dict[str, Figure]:
    """Return the process's memory with large messages; Python, PySpark and Arrow alone take about 105 MiB of it."""
    figures = {}
    limit = bytes_limit_mb + BESIDE_BUFFER_MB
    for size in LARGE_BYTES:
        run, kib = measured[size], size // 2**10
        figures[f"peak_rss_mb_{kib}k"] = Figure(
            name=f"messages of {kib} KiB: peak memory of the source's process, MiB",
            value=run.peak_rss_mb,
            limit=limit,
            ratio=run.peak_rss_mb / limit,
            compared_to="maxBufferedBytes and 128 MB",
        )
        figures[f"grown_rss_mb_{kib}k"] = Figure(
            name=f"messages of {kib} KiB: memory added by the run, MiB", value=run.peak_rss_mb - run.idle_rss_mb
        )
        figures[f"msgs_per_s_{kib}k"] = Figure(name=f"messages of {kib} KiB: messages per second", value=run.msgs_per_s)
    return figures


if __name__ == "__main__":
    typer.run(main)
