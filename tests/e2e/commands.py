"""The command line in processes of its own, as people have it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.deployed import Deployed


@contextmanager
def running(deployed: Deployed, *arguments: str, cwd: Path | None = None) -> Iterator["subprocess.Popen[str]"]:
    """`sluice` with these arguments, against the deployed site; killed at the end, where it still runs.

    It leads a process group: what it starts is stopped and goes on with it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.cli.main", *arguments],
        # boto3 as it comes doesn't try a call of SQS again that is throttled.
        env={**os.environ, **deployed.cloud.environment(deployed.site), "AWS_RETRY_MODE": "standard"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        process_group=0,
        # A shell lets what it starts in the background ignore ctrl-C, and the tests too, if it started them so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: "subprocess.Popen[str]") -> str:
    """Its next line of output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def noted(process: "subprocess.Popen[str]") -> list[str]:
    """All lines that it has said beside its output, once it has ended."""
    assert process.stderr is not None
    return process.stderr.read().splitlines()


def program(text: str, *arguments: str) -> Sequence[str]:
    """A program of Python's, as arguments of a command that runs one."""
    return ["--", sys.executable, "-c", text, *arguments]
