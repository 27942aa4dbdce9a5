"""Ctrl-C ends the console: at once, without a word, whatever pages follow and whatever AWS doesn't answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from sluice.cli.terminal import SIGNAL_EXIT_BASE
from sluice.local.origins import LOOPBACK
from tests.browser import serving
from tests.console.conftest import RecordedSites

ENDS_WITHIN_S = 10.0  # other suites may have the processors; a call to AWS would take a minute, and be made again
# Who was started in the background, as a whole suite may be, passes on that ctrl-C is none.
INTERRUPTIBLE = ("env", "--default-signal=INT")


@pytest.fixture
def silent() -> Iterator[str]:
    """An AWS that takes calls and never answers."""
    with socket.socket() as listening:
        listening.bind((LOOPBACK, 0))
        listening.listen()
        yield f"http://{LOOPBACK}:{listening.getsockname()[1]}"


@dataclass(frozen=True)
class Program:
    """One that runs until ctrl-C, of a terminal of its own."""

    process: "subprocess.Popen[str]"

    def interrupted(self) -> tuple[int, str, str]:
        """Presses ctrl-C, which all of a terminal's programs get; its exit code, and what it still says."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=ENDS_WITHIN_S)
        return self.process.returncode, out, err


@contextmanager
def running(*command: str, environment: Mapping[str, str]) -> Iterator[Program]:
    process = subprocess.Popen(
        [*INTERRUPTIBLE, sys.executable, *command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Program(process)
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_ends_it_at_once_though_a_page_follows_a_site_that_doesnt_answer(silent: str) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_ENDPOINT_URL": silent}
    command = ("-m", "sluice.cli.main", "console", "eu-central-1", "--no-browser", "--json")
    with running(*command, environment=keys) as console:
        assert console.process.stdout is not None
        address = json.loads(console.process.stdout.readline())["address"]
        with urllib.request.urlopen(f"{address}events?topic=overview@0") as stream:
            assert stream.readline() == b": follows\n"
            assert console.interrupted() == (SIGNAL_EXIT_BASE + signal.SIGINT, "", "")


def test_streams_end_with_the_console(sites: RecordedSites) -> None:
    with serving(sites) as served, urllib.request.urlopen(f"{served.address}events?topic=overview@0") as stream:
        first = stream.readline()
        served.end()
        assert (first + stream.read()).endswith(b"\n\n")  # to its end, and not cut off
