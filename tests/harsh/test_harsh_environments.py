"""A harsh cloud's functions: frozen between two invocations, and ended with all that they have started."""

from functools import partial
from pathlib import Path

from sluice.aws.connections import Connection
from sluice.building.interpreters import find_lambda_python
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

# Registers an extension if it is asked to, and writes a file when it gets SIGTERM.
LAST_WORDS = """
import os, pathlib, signal, threading, urllib.request

API = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2020-01-01/extension/"

def register():
    headers = {"Lambda-Extension-Name": "shutdown"}
    request = urllib.request.Request(API + "register", data=b'{"events": []}', headers=headers)
    id_ = urllib.request.urlopen(request).headers["Lambda-Extension-Identifier"]
    next_ = urllib.request.Request(API + "event/next", headers={"Lambda-Extension-Identifier": id_})
    threading.Thread(target=urllib.request.urlopen, args=[next_], daemon=True).start()

def note_the_end(note):
    signal.sigwait([signal.SIGTERM])
    pathlib.Path(note).write_text("ended")
    os._exit(0)

def handler(event, context):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # first, as threads inherit it
    if event["registers"]:
        register()
    threading.Thread(target=note_the_end, args=[event["note"]], daemon=True).start()
    return os.getpid()
"""


def state(pid: int) -> str:
    """As in /proc: T is stopped, S sleeps; empty where it has ended."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return ""
    return "" if letter == "Z" else letter


def has_ended(pid: int) -> bool:
    return state(pid) == ""


def test_a_function_is_frozen_with_its_children_between_invocations(account: Connection, function_role: str) -> None:
    deploy_function(account, "frozen", SOURCE, role_arn=function_role)
    first = invoke(account, "frozen", {})
    eventually(lambda: [state(pid) for pid in first] == ["T", "T"])
    assert invoke(account, "frozen", {}) == first  # it goes on where it was
    eventually(lambda: [state(pid) for pid in first] == ["T", "T"])


def test_a_function_that_is_killed_at_its_time_out_ends_with_its_children(
    account: Connection, function_role: str, tmp_path: Path
) -> None:
    deploy_function(account, "hangs", SOURCE, timeout_s=3, role_arn=function_role)
    note = tmp_path / "child"
    assert "timed out" in invoke(account, "hangs", {"hangs": True, "note": str(note)})["errorMessage"]
    eventually(lambda: state(int(note.read_text())) == "")


def test_only_an_environment_with_an_extension_is_told_of_its_shutdown(
    account: Connection, function_role: str, tmp_path: Path
) -> None:
    client = account.client("lambda")
    for name, registers in (("told", True), ("killed", False)):
        deploy_function(account, name, LAST_WORDS, role_arn=function_role)
        note = tmp_path / name
        pid = invoke(account, name, {"note": str(note), "registers": registers})
        client.update_function_configuration(FunctionName=name, MemorySize=256)  # ends its environments
        eventually(partial(has_ended, pid))
        assert note.exists() is registers


def test_a_function_runs_on_the_python_that_setup_installed(account: Connection, function_role: str) -> None:
    deploy_function(
        account,
        "says",
        "import sys\ndef handler(event, context): return sys.version_info[:2]\n",
        role_arn=function_role,
    )
    assert ".".join(map(str, invoke(account, "says", {}))) == find_lambda_python().version
