"""Runs jq programs in a child process, which is killed when one takes too long: `sluice.splitting.filters.jq.Decide`.

An endless jq program holds the interpreter lock and ignores signals and threads. Lambda has no shared memory for
`multiprocessing`'s queues, so the two talk over pipes.
"""

import atexit
import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sluice.splitting import jq_child
from sluice.splitting.filters.jq import TIME_LIMIT_S, NotRunning, ProgramTimedOut

START_LIMIT_S = 5.0  # importing jq in a cold environment
COMPILE_LIMIT_S = 5.0
CODE = Path(__file__).parents[2]  # the folder with `sluice`
# All that the child's interpreter needs: a program reads variables by `env`, and the function's has its credentials.
VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


@dataclass(slots=True)
class JqRunner:
    """One child, started when the first program asks. Not for threads."""

    time_limit_s: float = TIME_LIMIT_S
    _child: "subprocess.Popen[bytes] | None" = None

    def __call__(self, program: str, document: str) -> bool | None:
        """Find the first boolean that the program outputs, None without one. Raises `ProgramTimedOut`, `NotRunning`."""
        self.ready()
        decided: bool | None = self._request([program, document], self.time_limit_s)
        return decided

    def problem(self, program: str) -> str | None:
        """Give the compiler's words where the program doesn't compile. Raises `NotRunning`."""
        self.ready()
        try:
            words: str | None = self._request([program, None], COMPILE_LIMIT_S)
        except ProgramTimedOut as error:
            return str(error)
        return words

    def ready(self) -> None:
        """Start the child, unless it runs. Raises `NotRunning`."""
        if self._child is not None and self._child.poll() is None:
            return
        self.close()  # where it ended between two programs, that was the fault of neither
        self._child = start_child()
        try:
            self._request(["true", "null"], START_LIMIT_S)
        except ProgramTimedOut as error:
            raise NotRunning(str(error)) from None

    def close(self) -> None:
        """End the child; the next program starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _request(self, asked: object, limit_s: float) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise ProgramTimedOut("no process to run it")
        try:
            child.stdin.write((json.dumps(asked) + "\n").encode())
            child.stdin.flush()
            is_late = not select.select([child.stdout], [], [], limit_s)[0]
            line = b"" if is_late else child.stdout.readline()
        except BrokenPipeError:
            is_late, line = False, b""
        if line:
            return json.loads(line)
        self.close()
        cause = "the process that ran it ended, for want of memory or by a fault of jq"
        raise ProgramTimedOut(f"still running after {limit_s:g} s" if is_late else cause)


def start_child() -> "subprocess.Popen[bytes]":
    """Start the process that runs programs."""
    return subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", jq_child.__name__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: os.environ[name] for name in VARIABLES if name in os.environ}
        | {"PYTHONPATH": os.pathsep.join([str(CODE), *sys.path])},
    )


def compile_problem(program: str) -> str | None:
    """Give the compiler's own words, or None for a program that compiles within its limits. Not for threads."""
    return _runner().problem(program)


@cache
def _runner() -> JqRunner:
    """One for all programs of an environment: a filter file may have a hundred."""
    runner = JqRunner()
    atexit.register(runner.close)
    return runner
