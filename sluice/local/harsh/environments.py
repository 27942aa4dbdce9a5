"""Functions' execution environments between two invocations."""

import contextlib
import os
import signal
from typing import Any

import ministack.core.lambda_runtime


def freeze_between_invocations() -> None:
    """Stop an environment, with all that runs in it, once it has answered, until it is invoked again.

    "Lambda freezes the execution environment when the runtime and each extension have completed and there are no
    pending events"; what a function left running goes on when the environment is used again, or never.
    https://docs.aws.amazon.com/lambda/latest/dg/lambda-runtime-environment.html

    `sluice.local.patches.functions.end_environments_whole` has made each a process group.
    """
    worker = ministack.core.lambda_runtime.Worker
    invoke = worker.invoke

    def invoke_thawed(self: Any, *arguments: Any, **named: Any) -> Any:
        _signal_group(self._proc, signal.SIGCONT)
        try:
            return invoke(self, *arguments, **named)
        finally:
            _signal_group(self._proc, signal.SIGSTOP)

    worker.invoke = invoke_thawed


def _signal_group(process: Any, signal_number: int) -> None:
    if process is not None and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
