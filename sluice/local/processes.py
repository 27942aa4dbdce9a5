"""Processes of the embedded cloud: checks whether a process runs, and kills all processes of a session."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROCESSES = Path("/proc")


def is_running(pid: int, command: str) -> bool:
    """Return whether process `pid` runs `command`, as its command line says: the process id might have been reused."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # If the process is an ended child, this removes the zombie.
    try:
        os.kill(pid, 0)
        if sys.platform != "linux":
            return True
        process = PROCESSES / str(pid)
        command_line, state = (process / "cmdline").read_bytes(), (process / "stat").read_text().rsplit(") ", 1)[1][0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    # A process that is just starting has no command line yet.
    return state != "Z" and (not command_line or command.encode() in command_line)


def end_session(session: int) -> None:
    """Kill every process of a session, the session's leader and the caller last. An empty session is no error."""
    last = {session, os.getpid()}
    members = []
    for pid in _list_pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == session:
                members.append(pid)
    for pid in [pid for pid in members if pid not in last] + [pid for pid in members if pid in last]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _list_pids() -> Iterator[int]:
    if PROCESSES.is_dir():
        yield from (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit())
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid="], check=True, capture_output=True, text=True)  # noqa: S607 - the system's
        yield from map(int, listed.stdout.split())
