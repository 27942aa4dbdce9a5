"""Processes that have to end with the cloud that started them, in whatever group they are."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROCESSES = Path("/proc")


def end_session(session: int) -> None:
    """Kill every process of a session at once, its leader and the caller last; none is no error."""
    last = {session, os.getpid()}
    members = [pid for pid in _pids() if _session_of(pid) == session]
    for pid in [pid for pid in members if pid not in last] + [pid for pid in members if pid in last]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    if PROCESSES.is_dir():
        yield from (int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit())
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid="], check=True, capture_output=True, text=True)  # noqa: S607 - the system's
        yield from map(int, listed.stdout.split())


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
