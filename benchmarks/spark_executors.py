"""What `mode=executors` costs as executors are added: 1, 2 and 4 of one core, beside `mode=driver`, on Spark itself.

`python -m benchmarks.spark_executors [--json]`: eight queues of an in-memory SQS in a process of its own, messages of
1 KiB, Spark's `local-cluster`, whose executors are programs of their own. A machine of two cores can't show how a rate
grows with executors; it shows whether a message costs more where there are more of them: messages a CPU second must
stay flat. CPU is of all Python processes of Spark's, driver and executors; Java's stands beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.report import Figure, report
from benchmarks.spark_source import memory_sqs, runs, spark_python

EXECUTORS = (1, 2, 4)
BESIDE = 2  # executors, when `mode=driver` is measured
QUEUES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One way, in numbers per message and second."""

    msgs_per_s: float
    msgs_per_cpu_s: float
    java_cpu_s_per_100k: float
    requests_per_message: float

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> "Measured":
        """From what `spark_executors_runs` says."""
        messages = run["messages"]
        return cls(
            msgs_per_s=messages / run["seconds"],
            msgs_per_cpu_s=messages / run["python_cpu_s"],
            java_cpu_s_per_100k=run["java_cpu_s"] / messages * 100_000,
            requests_per_message=run["requests"] / messages,
        )


def main(
    *, as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON on the last line.")] = False
) -> None:
    """Measure, one number of executors after the other."""
    console = Console(stderr=True)
    executors = {}
    with console.status("Spark's environment") as status:
        python = spark_python()
        for count in EXECUTORS:
            status.update(f"Spark with {count} executors")
            executors[count] = _measured(python, count, "executors")
        status.update("a receiver beside the driver")
        driver = _measured(python, BESIDE, "driver")
    figures = _executors(executors, driver) | _driver(driver)
    series = {
        name: {str(count): f"{name}_{count}" for count in EXECUTORS}
        for name in ("msgs_per_cpu_s", "msgs_per_s", "java_cpu_s_per_100k", "requests_per_message")
    }
    report("mode=executors, eight queues, messages of 1 KiB", figures, as_json=as_json, series=series)


def _measured(python: Any, count: int, mode: str) -> Measured:
    """Give each its own SQS, as an earlier one's memory isn't this one's."""
    with memory_sqs(QUEUES) as url:
        return Measured.of(runs(python, url, str(count), mode, module="benchmarks.spark_executors_runs"))


def _executors(executors: Mapping[int, Measured], driver: Measured) -> dict[str, Figure]:
    figures, least = {}, executors[EXECUTORS[0]]
    for count, found in executors.items():
        figures[f"msgs_per_cpu_s_{count}"] = Figure(
            name=f"messages a CPU second of Python, executors: {count}",
            value=found.msgs_per_cpu_s,
            ratio=found.msgs_per_cpu_s / least.msgs_per_cpu_s,
            compared_to=f"{EXECUTORS[0]} executor",
        )
        figures[f"msgs_per_s_{count}"] = Figure(
            name="messages a second", value=found.msgs_per_s, ratio=found.msgs_per_s / driver.msgs_per_s,
            compared_to="mode=driver",
        )  # fmt: skip
        figures[f"java_cpu_s_per_100k_{count}"] = Figure(
            name="CPU seconds of Java per 100,000", value=found.java_cpu_s_per_100k
        )
        figures[f"requests_per_message_{count}"] = Figure(name="requests per message", value=found.requests_per_message)
    flat = min(found.msgs_per_cpu_s for found in executors.values()) / least.msgs_per_cpu_s
    beside = executors[BESIDE].msgs_per_cpu_s / driver.msgs_per_cpu_s
    return figures | {
        "flatness": Figure(name="the least of the ratios to one executor", value=flat),
        "ratio_to_driver": Figure(name="messages a CPU second, to those of mode=driver", value=beside),
    }


def _driver(found: Measured) -> dict[str, Figure]:
    return {
        "driver_msgs_per_cpu_s": Figure(
            name="messages a CPU second of Python, mode=driver", value=found.msgs_per_cpu_s
        ),
        "driver_msgs_per_s": Figure(name="messages a second", value=found.msgs_per_s),
        "driver_java_cpu_s_per_100k": Figure(name="CPU seconds of Java per 100,000", value=found.java_cpu_s_per_100k),
        "driver_requests_per_message": Figure(name="requests per message", value=found.requests_per_message),
    }


if __name__ == "__main__":
    typer.run(main)
