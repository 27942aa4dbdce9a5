"""Measures the land job from the main queue to its tables, relative to the source without the job.

`python -m benchmarks.pipeline [--json]`: an in-memory SQS in its own process with 20 ms per call, messages of 1 KiB,
and local Spark on this machine's cores. For the source, the sink reads all rows and writes nothing.
"""

from typing import Annotated

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from benchmarks.spark_source import Measured, memory_sqs, runs, spark_python

LEAST_RATIO = 0.5  # of the source's rate


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False
) -> None:
    """Run both measurements."""
    console = Console(stderr=True)
    with console.status("installing Spark") as status:
        python = spark_python()
        status.update("an in-memory SQS, and Spark on it")
        with memory_sqs() as url:
            found = runs(python, url, module="benchmarks.pipeline_runs")
    measured = {run["way"]: Measured.of(run) for run in found["runs"]}
    job, source = measured["land"], measured["source"]
    figures = {
        "msgs_per_s": Figure(
            name="messages written to tables per second",
            value=job.msgs_per_s,
            ratio=job.msgs_per_s / source.msgs_per_s,
            compared_to="the source alone",
        ),
        "source_msgs_per_s": Figure(name="messages per second, the source alone", value=source.msgs_per_s),
        "ratio_to_source": Figure(
            name=f"job's rate relative to the source's, at least {LEAST_RATIO}",
            value=job.msgs_per_s / source.msgs_per_s,
        ),
        "python_cpu_s_per_100k": Figure(
            name="CPU seconds of Python per 100,000 messages",
            value=job.cpu_s_per_100k,
            ratio=job.cpu_s_per_100k / source.cpu_s_per_100k,
            compared_to="the source alone",
        ),
        "requests_per_message": Figure(name="SQS requests per message", value=job.requests_per_message, limit=0.21),
    }
    report("Landing job: messages of 1 KiB", figures, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
