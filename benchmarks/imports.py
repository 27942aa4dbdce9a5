"""How long imports take, each in a fresh interpreter; they take turns, and the fastest of each counts."""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 7


def import_ms(python: Path, statements: Sequence[str], *, path: Sequence[Path], cwd: Path) -> dict[str, float]:
    """Milliseconds for each import statement, less what an interpreter takes that imports nothing."""
    fastest = dict.fromkeys(["pass", *statements], float("inf"))
    for _ in range(ROUNDS):
        for statement in fastest:
            fastest[statement] = min(fastest[statement], _run_ms(python, statement, path=path, cwd=cwd))
    return {statement: fastest[statement] - fastest["pass"] for statement in statements}


def _run_ms(python: Path, statement: str, *, path: Sequence[Path], cwd: Path) -> float:
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in path]!r}; {statement}"
    started = time.perf_counter()
    subprocess.run([python, "-c", code], check=True, cwd=cwd, env={}, stderr=sys.stderr)
    return (time.perf_counter() - started) * 1000
