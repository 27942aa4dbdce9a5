"""How long a handler takes to import, as deployed, against bare boto3.

Each import has a fresh interpreter; they take turns, and the fastest of each counts. The interpreter is the one that
the embedded cloud runs functions with; it finds the function's code and layer as on Lambda.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.local.cloud import BUILD, PROJECT
from sluice.local.runtime import runtime_python
from stacks.assets import Assets, Target
from stacks.parameters import Architecture

ROUNDS = 20  # on a machine that does other things too, fewer differ by a fifth
BOTO3 = "boto3"
# Both sides compiled before, or our side from its sources, as Lambda finds a bundle; boto3 always is compiled.
COMPILED = {"PYTHONPYCACHEPREFIX": str(BUILD / "pycache")}
FROM_SOURCES = {"PYTHONDONTWRITEBYTECODE": "1"}


def import_ms(functions: Sequence[str], *, layer: str, environment: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds for each handler, and for `BOTO3`, less what an interpreter takes that imports nothing."""
    assets = Assets(PROJECT)
    packages = assets.layer(assets.bundle(layer), Target.of(Architecture.LOCAL)).folder / "python"
    code = {"": "pass", BOTO3: "import boto3"} | {
        name: _code([assets.code(name).folder, packages], f"import functions.{name}.handler") for name in functions
    }
    fastest = dict.fromkeys(code, float("inf"))
    for _ in range(ROUNDS):
        for name, statements in code.items():
            fastest[name] = min(fastest[name], _run_ms(statements, environment))
    return {name: fastest[name] - fastest[""] for name in [BOTO3, *functions]}


def slowest_ratio(imports_ms: Mapping[str, float]) -> float:
    """Give the slowest handler's time to boto3's."""
    return max(took for name, took in imports_ms.items() if name != BOTO3) / imports_ms[BOTO3]


def _code(path: Sequence[Path], statement: str) -> str:
    return f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}; {statement}"


def _run_ms(code: str, environment: Mapping[str, str]) -> float:
    python = runtime_python(BUILD, PROJECT / "requirements.txt")
    started = time.perf_counter()
    subprocess.run([python, "-c", code], check=True, cwd=BUILD, env=dict(environment))
    return (time.perf_counter() - started) * 1000
