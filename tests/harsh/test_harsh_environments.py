"""A harsh cloud's functions: frozen between two invocations, and ended with all that they have started."""

from pathlib import Path

from sluice.aws.operator.connections import Connection
from sluice.lambda_python import lambda_python
from tests.harsh.conftest import eventually
from tests.harsh.functions import deploy_function, invoke

# Starts a child that would run for long, says who is there, and waits where it is told to.
SOURCE = """
import os, pathlib, subprocess, time

child = None

def handler(event, context):
    global child
    child = child or subprocess.Popen(["sleep", "3600"])
    if "note" in event:
        pathlib.Path(event["note"]).write_text(str(child.pid))
    if event.get("hangs"):
        time.sleep(3600)
    return [os.getpid(), child.pid]
"""


def state(pid: int) -> str:
    """As in /proc: T is stopped, S sleeps; empty where it has ended."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return ""
    return "" if letter == "Z" else letter


def test_a_function_is_frozen_with_its_children_between_invocations(account: Connection) -> None:
    deploy_function(account, "frozen", SOURCE)
    first = invoke(account, "frozen", {})
    eventually(lambda: [state(pid) for pid in first] == ["T", "T"])
    assert invoke(account, "frozen", {}) == first  # it goes on where it was
    eventually(lambda: [state(pid) for pid in first] == ["T", "T"])


def test_a_function_that_is_killed_at_its_time_out_ends_with_its_children(account: Connection, tmp_path: Path) -> None:
    deploy_function(account, "hangs", SOURCE, timeout_s=3)
    note = tmp_path / "child"
    assert "timed out" in invoke(account, "hangs", {"hangs": True, "note": str(note)})["errorMessage"]
    eventually(lambda: state(int(note.read_text())) == "")


def test_a_function_runs_on_the_python_that_setup_installed(account: Connection) -> None:
    deploy_function(account, "says", "import sys\ndef handler(event, context): return sys.version_info[:2]\n")
    assert ".".join(map(str, invoke(account, "says", {}))) == lambda_python().version
