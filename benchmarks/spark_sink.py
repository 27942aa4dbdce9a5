"""Measures the Spark sink's rate and cost, relative to a boto3 loop in foreachPartition.

`python -m benchmarks.spark_sink [--json]`: two tasks on two cores send messages of 1 KiB that Spark generates, to an
in-memory SQS in its own process, at 0 and 20 ms per call; two more runs have partly failing batches. CPU time is that
of Spark's Python processes, without Java and the queue. Figures per CPU second hold on a busy machine too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from benchmarks.spark_source import memory_sqs, runs, spark_python

LATENCIES_MS = (0, 20)
REQUESTS_LIMIT = 0.11  # per message


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way at one latency, in numbers per message and second."""

    msgs_per_s: float
    msgs_per_cpu_s: float
    requests_per_message: float

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> "Measured":
        """Build it from the output of `spark_sink_runs`."""
        messages = run["messages"]
        return cls(
            msgs_per_s=messages / run["seconds"],
            msgs_per_cpu_s=messages / run["python_cpu_s"],
            requests_per_message=run["requests"] / messages,
        )


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run all measurements."""
    console = Console(stderr=True)
    with console.status("installing Spark") as status:
        python = spark_python()
        status.update("an in-memory SQS, and Spark that writes to it")
        with memory_sqs() as url:
            found = runs(python, url, module="benchmarks.spark_sink_runs")
    measured = {(run["way"], run["latency_ms"]): Measured.of(run) for run in found["runs"]}
    figures = _speed(measured) | _requests(measured) | _in_part(found)
    series = {
        name: {str(latency): f"{name}_{latency}" for latency in LATENCIES_MS}
        for name in ("msgs_per_s", "msgs_per_cpu_s", "boto3_msgs_per_s", "boto3_msgs_per_cpu_s")
    }
    report("Spark sink: messages of 1 KiB", figures, as_json=as_json, series=series)


def _speed(measured: Mapping[tuple[str, int], Measured]) -> dict[str, Figure]:
    figures, ratios, cpu_ratios = {}, [], []
    for latency in LATENCIES_MS:
        ours, loop = measured["sink", latency], measured["boto3", latency]
        ratios.append(ours.msgs_per_s / loop.msgs_per_s)
        cpu_ratios.append(ours.msgs_per_cpu_s / loop.msgs_per_cpu_s)
        figures[f"msgs_per_s_{latency}"] = Figure(
            name=f"messages per second, {latency} ms per call",
            value=ours.msgs_per_s,
            ratio=ratios[-1],
            compared_to="a boto3 loop in foreachPartition",
        )
        figures[f"boto3_msgs_per_s_{latency}"] = Figure(
            name=f"boto3 loop: messages per second, {latency} ms per call", value=loop.msgs_per_s
        )
        figures[f"msgs_per_cpu_s_{latency}"] = Figure(
            name=f"messages per CPU second of Python, {latency} ms per call",
            value=ours.msgs_per_cpu_s,
            ratio=cpu_ratios[-1],
            compared_to="the boto3 loop",
        )
        figures[f"boto3_msgs_per_cpu_s_{latency}"] = Figure(
            name=f"boto3 loop: messages per CPU second, {latency} ms per call", value=loop.msgs_per_cpu_s
        )
    return figures | {
        "ratio_to_boto3": Figure(name="lowest ratio of messages per second", value=min(ratios)),
        "cpu_ratio_to_boto3": Figure(name="lowest ratio of messages per CPU second", value=min(cpu_ratios)),
    }


def _requests(measured: Mapping[tuple[str, int], Measured]) -> dict[str, Figure]:
    worst = max(measured["sink", latency].requests_per_message for latency in LATENCIES_MS)
    return {"requests_per_message": Figure(name="requests per message", value=worst, limit=REQUESTS_LIMIT)}


def _in_part(found: Mapping[str, Any]) -> dict[str, Figure]:
    busy, refused = found["in_part"]["busy"], found["in_part"]["refused"]
    return {
        "failed_entries": Figure(name="entries that failed, of partly accepted batches", value=busy["failed"]),
        "failed_entries_missing": Figure(
            name="failed entries missing from the queue in the end", value=busy["missing"], limit=0
        ),
        "failed_entries_extra": Figure(
            name="rows that are in the queue twice in the end", value=busy["extra"], limit=0
        ),
        "failed_requests_per_message": Figure(
            name="requests per message, with those for failed entries", value=busy["requests_per_message"]
        ),
        "refused_entries": Figure(name="entries that SQS rejects, failOnError=false", value=refused["failed"]),
        "refused_entries_others_missing": Figure(
            name="other rows missing from the queue", value=refused["missing"] - refused["failed"], limit=0
        ),
    }


if __name__ == "__main__":
    typer.run(main)
