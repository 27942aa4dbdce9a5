"""`make smoke` whole, on an embedded cloud of its own: each check passes, nothing is left, nothing keeps running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.local.cloud import BUILD, find
from sluice.project import PROJECT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),  # a queue's name is taken for a minute after it was deleted, twice
]
CHECKS = (
    "ready", "deploy",
    "offers", "https", "stranger", "split", "sizes", "bridge", "pause", "pipeline", "alarms", "mend", "close",
    "dead-letters", "functions",
    "costs", "destroy",
)  # fmt: skip
COMMAND = [sys.executable, "-m", "sluice.smoke", "--local"]
ENDED_WITHIN_S = 300


@pytest.fixture(autouse=True)
def _nothing_runs_afterwards() -> Iterator[None]:
    yield
    assert find(BUILD / "smoke-cloud") is None


def test_every_check_passes_and_nothing_is_left() -> None:
    done = subprocess.run([*COMMAND, "--json"], cwd=PROJECT.workspace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {each["name"]: each["outcome"] for each in report["checks"]} == dict.fromkeys(CHECKS, "passed")
    assert report["checks"][-1]["detail"] == "nothing is left"
    assert 0 < report["usd"] < report["budget_usd"] == 1
    assert any("SQS requests" in line for line in report["used"])


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM], ids=lambda ends: ends.name)
def test_a_run_that_is_ended_amid_its_deployment_destroys_first(ends: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, cwd=PROJECT.workspace, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        for line in running.stderr:
            if line.startswith("deploy"):
                break
        os.kill(running.pid, ends)
        told = running.stderr.read()
        running.wait(ENDED_WITHIN_S)
    assert running.returncode != 0
    [destroyed] = [line for line in told.splitlines() if line.startswith("destroy  ")]
    assert "nothing is left" in destroyed
