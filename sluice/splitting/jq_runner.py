"""Runs jq programs in a child process, as `filters.jq.Decide`. The process is killed if a program takes too long.

An endless jq program holds Python's interpreter lock and can't be interrupted by signals or threads. Lambda has no
shared memory, which the queues of `multiprocessing` need, so the two processes communicate over pipes.
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
from typing import Any, cast

from sluice.splitting import jq_child
from sluice.splitting.filters.jq import TIME_LIMIT_S, NotRunning, ProgramTimedOut

START_LIMIT_S = 5.0  # In a new environment, the process may take this many seconds to import jq.
COMPILE_LIMIT_S = 5.0
CODE = Path(__file__).parents[2]  # This folder contains the package `sluice`.
# The child gets only these environment variables. A jq program can read its environment with `env`, so the child must
# not have the function's credentials.
VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


@dataclass(slots=True)
class JqRunner:
    """Runs jq programs in one child process, which is started for the first program. Not thread-safe."""

    time_limit_s: float = TIME_LIMIT_S
    _child: "subprocess.Popen[bytes] | None" = None

    def __call__(self, program: str, document: str) -> bool | None:
        """Run a jq program. Returns its first boolean output, or None. Raises `ProgramTimedOut` or `NotRunning`."""
        self.ensure_started()
        return cast("bool | None", self._send_request([program, document], self.time_limit_s))

    def problem(self, program: str) -> str | None:
        """Compile a jq program. Returns the compiler's error; None if it compiles. Raises `NotRunning`."""
        self.ensure_started()
        try:
            error_text: str | None = self._send_request([program, None], COMPILE_LIMIT_S)
        except ProgramTimedOut as error:
            return str(error)
        return error_text

    def ensure_started(self) -> None:
        """Start the child process, unless it is running. Raises `NotRunning`."""
        if self._child is not None and self._child.poll() is None:
            return
        self.close()  # The last child may have ended between two programs.
        self._child = start_child()
        try:
            self._send_request(["true", "null"], START_LIMIT_S)
        except ProgramTimedOut as error:
            raise NotRunning(str(error)) from None

    def close(self) -> None:
        """Kill the child process. The next program starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _send_request(self, request: object, limit_s: float) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise ProgramTimedOut("no process to run it")
        try:
            child.stdin.write((json.dumps(request) + "\n").encode())
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
    """Start the child process that runs jq programs."""
    return subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", jq_child.__name__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: os.environ[name] for name in VARIABLES if name in os.environ}
        | {"PYTHONPATH": os.pathsep.join([str(CODE), *sys.path])},
    )


def compile_problem(program: str) -> str | None:
    """Compile a jq program. Returns the compiler's error; None if it compiles within its limits. Not thread-safe."""
    return _get_runner().problem(program)


@cache
def _get_runner() -> JqRunner:
    """Return the runner that all programs of the environment share: a process per program would be too much."""
    runner = JqRunner()
    atexit.register(runner.close)
    return runner
