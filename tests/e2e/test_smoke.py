"""`make smoke` whole, on an embedded cloud of its own: each check passes, nothing is left, nothing keeps running."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sluice.building.project import PROJECT
from sluice.local.cloud import BUILD, find_cloud

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1_800),  # a queue's name is taken for a minute after it was deleted, twice
]
CHECKS = [
    "offers", "https", "stranger", "split", "sizes", "bridge", "pause", "pipeline", "alarms", "mend", "close", "dead",
    "functions", "costs",
]  # fmt: skip
COMMAND = [sys.executable, "-m", "pytest", "--capture=no", "tests/smoke", "--local"]
ASKED = os.environ | {"SLUICE_SMOKE": "1"}
ENDED_WITHIN_S = 300


@pytest.fixture(autouse=True)
def _nothing_runs_afterwards() -> Iterator[None]:
    yield
    assert find_cloud(BUILD / "smoke-cloud") is None


def test_every_check_passes_and_nothing_is_left(tmp_path: Path) -> None:
    command = [*COMMAND, f"--junit-xml={tmp_path}/smoke.xml"]
    done = subprocess.run(command, cwd=PROJECT.workspace, env=ASKED, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = list(ET.parse(tmp_path / "smoke.xml").iter("testcase"))
    assert [test.attrib["name"].split("_")[1] for test in tests] == CHECKS
    assert not [test.attrib["name"] for test in tests if test.find("skipped") is not None]
    assert "destroyed: nothing is left\n" in done.stderr
    [usd] = [found.attrib["value"] for test in tests for found in test.iter("property")]
    assert 0 < float(usd) < 1
    assert "SQS requests" in done.stderr


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM], ids=lambda ends: ends.name)
def test_a_run_that_is_ended_amid_its_deployment_destroys_first(ends: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, cwd=PROJECT.workspace, env=ASKED, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr
        for line in running.stderr:
            if line.startswith("deploys"):
                break
        os.kill(running.pid, ends)
        told = running.stderr.read()
        running.wait(ENDED_WITHIN_S)
    assert running.returncode != 0
    assert "destroyed: nothing is left" in told
