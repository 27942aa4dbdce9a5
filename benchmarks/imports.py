"""Measures the CPU time of each handler's import as Lambda loads it, relative to `import boto3`.

Each import runs in a new interpreter of the embedded cloud's Python, which has a compiled boto3 as Lambda's has. It
uses our code and layer with the deployed bytecode, and writes none. Imports alternate; the result is the median of user
and system time, less that of an interpreter without imports. No client is created, because handlers create clients at
the first call.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.report import Figure, report
from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets, BundleTarget
from sluice.local.cloud import BUILD
from sluice.local.runtime import runtime_python
from sluice.parameters import Architecture

ROUNDS = 30  # with fewer, medians differ by a tenth on a busy machine
BOTO3 = "boto3"
LAYER = ("functions", "splitter")  # extras that the layers of all functions contain
RATIO_MAX = 1.25
FUNCTIONS = tuple(sorted(path.parent.name for path in (PROJECT.files / "functions").glob("*/handler.py")))


def import_cpu_ms(functions: Sequence[str], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the CPU milliseconds of each handler's import, and of `BOTO3`."""
    assets = Assets(PROJECT)
    packages = assets.layer(assets.bundle(*LAYER), BundleTarget.of(Architecture.LOCAL)).folder / "python"
    path = [assets.code().folder, packages]
    code = {"": "pass", BOTO3: "import boto3"} | {
        name: _code(path, f"import functions.{name}.handler") for name in functions
    }
    python = runtime_python(BUILD, PROJECT.lock_file)
    taken: dict[str, list[float]] = {name: [] for name in code}
    for _ in range(rounds):
        for name, statements in code.items():
            taken[name].append(_cpu_ms(python, statements))
    return {name: median(taken[name]) - median(taken[""]) for name in [BOTO3, *functions]}


def ratios(cpu_ms: Mapping[str, float]) -> dict[str, float]:
    """Return each handler's CPU relative to boto3's."""
    return {name: took / cpu_ms[BOTO3] for name, took in cpu_ms.items() if name != BOTO3}


def _code(path: Sequence[Path], statement: str) -> str:
    return f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}; {statement}"


def _cpu_ms(python: Path, code: str) -> float:
    process = subprocess.Popen([python, "-c", code], cwd=BUILD, env={"PYTHONDONTWRITEBYTECODE": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return (used.ru_utime + used.ru_stime) * 1000


def main(
    *,
    rounds: Annotated[int, typer.Option(help="Number of times that each is imported.")] = ROUNDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON on the last line, too.")] = False,
) -> None:
    """Measure the import of every function, and compare."""
    cpu_ms = import_cpu_ms(FUNCTIONS, rounds=rounds)
    to_boto3 = ratios(cpu_ms)
    figures = {"boto3_ms": Figure(name="import boto3, ms of CPU", value=cpu_ms[BOTO3])}
    for name, ratio in to_boto3.items():
        figures[f"import_{name}_ms"] = Figure(
            name=f"{name}'s handler, ms of CPU", value=cpu_ms[name], ratio=ratio, compared_to="boto3"
        )
    figures["import_ratio_max"] = Figure(
        name="slowest import, relative to boto3", value=max(to_boto3.values()), limit=RATIO_MAX
    )
    report("Import times", figures, as_json=as_json)


if __name__ == "__main__":
    typer.run(main)
