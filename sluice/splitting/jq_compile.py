"""Why a jq program doesn't compile: `filters.jq.CompileProblem`. In the process that runs programs, with its limits."""

import atexit
from functools import cache

from sluice.splitting.jq_runner import JqRunner


def compile_problem(program: str) -> str | None:
    """Give the compiler's own words, or None for a program that compiles within its limits. Not for threads."""
    return _runner().problem(program)


@cache
def _runner() -> JqRunner:
    """One for all programs of an environment: a filter file may have a hundred."""
    runner = JqRunner()
    atexit.register(runner.close)
    return runner
