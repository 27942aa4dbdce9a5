"""A process that Lambda shuts down: who is called, for how long, and that the process ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sluice.aws.shutdown import API_VARIABLE
from sluice.local.patches.functions import ExtensionsApi

ROOT = Path(__file__).parents[2]
PROGRAM = """
import threading
import time
from sluice.aws.shutdown import call_at_shutdown

lock = threading.Lock()

def callback():
    with lock:
        print("called", flush=True)
    if {fails}:
        raise ValueError("broken")

call_at_shutdown(callback)
with lock:
    print("ready", flush=True)
    if {locked}:
        time.sleep({locked})
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def extensions() -> ExtensionsApi:
    return ExtensionsApi()


def end(environment: Mapping[str, str], *, locked: float = 0.0, fails: bool = False) -> tuple[int, str]:
    """Return the exit code and the output of a process that gets SIGTERM when it is ready."""
    program = PROGRAM.format(locked=locked, fails=fails)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    return process.returncode, rest


@pytest.fixture
def environment(extensions: ExtensionsApi) -> Iterator[dict[str, str]]:
    yield {API_VARIABLE: extensions.address("token")}
    assert extensions.has_registered("token")


def test_the_callback_is_called_and_the_process_ends(environment: dict[str, str]) -> None:
    assert end(environment) == (0, "called\n")


def test_the_callback_waits_for_a_lock_that_the_main_thread_releases(environment: dict[str, str]) -> None:
    assert end(environment, locked=0.3) == (0, "called\n")


def test_a_callback_that_fails_is_logged_and_the_process_ends(environment: dict[str, str]) -> None:
    code, output = end(environment, fails=True)
    assert code == 0
    assert "ShutdownFailed" in output


def test_outside_lambda_nothing_is_registered(extensions: ExtensionsApi) -> None:
    assert end({API_VARIABLE: ""}) == (-signal.SIGTERM, "")
    assert not extensions.has_registered("other")
