"""What the land job carries from the main pipeline queue to its tables, side by side with the bare source.

`python -m benchmarks.pipeline [--json]`: an in-memory SQS in a process of its own, 20 ms a call, messages of 1 KiB,
local Spark on this machine's cores. The source's rate is to a sink that takes all and writes nothing.
"""

from typing import Annotated

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from benchmarks.spark_source import Measured, memory_sqs, runs, spark_python

LEAST_RATIO = 0.5  # of the bare source's rate


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on the last line.")] = False
) -> None:
    """Measure, side by side in one run."""
    console = Console(stderr=True)
    with console.status("Spark's environment") as status:
        python = spark_python()
        status.update("an in-memory SQS, and Spark on it")
        with memory_sqs() as url:
            found = runs(python, url, module="benchmarks.pipeline_runs")
    measured = {run["way"]: Measured.of(run) for run in found["runs"]}
    job, source = measured["land"], measured["source"]
    figures = {
        "msgs_per_s": Figure(
            name="messages a second into tables",
            value=job.msgs_per_s,
            ratio=job.msgs_per_s / source.msgs_per_s,
            compared_to="the bare source",
        ),
        "source_msgs_per_s": Figure(name="the same, of the bare source", value=source.msgs_per_s),
        "ratio_to_source": Figure(
            name=f"the job's rate to the source's, at least {LEAST_RATIO}", value=job.msgs_per_s / source.msgs_per_s
        ),
        "python_cpu_s_per_100k": Figure(
            name="CPU seconds of Python per 100,000",
            value=job.cpu_s_per_100k,
            ratio=job.cpu_s_per_100k / source.cpu_s_per_100k,
            compared_to="the bare source",
        ),
        "requests_per_message": Figure(name="SQS requests per message", value=job.requests_per_message, limit=0.21),
    }
    report("from the pipeline queue into tables, messages of 1 KiB", figures, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
