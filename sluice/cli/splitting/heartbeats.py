"""Sends a session's heartbeats from a separate process, because a debugger stops all threads of the main process."""

import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.aws.connections import build_environment, connect_user
from sluice.errors import CallFailed, RequestRefused
from sluice.operator.functions import ControlClient
from sluice.operator.sessions import HEARTBEAT_INTERVAL_S
from sluice.splitting.operations import KeepSession

PACKAGES = Path(__file__).parents[3]  # This folder contains the package `sluice`.


@contextmanager
def run_heartbeat_process(client: ControlClient, session_id: str, *, environment: Mapping[str, str]) -> Iterator[None]:
    """Start a process that sends a session's heartbeats until the context ends or this process is killed."""
    # The working directory's files could shadow Python modules. In its own session, the process doesn't get ctrl-C.
    keeper = subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", __name__, client.function, session_id],
        cwd=PACKAGES,
        stdin=subprocess.PIPE,
        env=build_environment(client.connection, environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        keeper.terminate()
        keeper.communicate()


def send_heartbeats(client: ControlClient, session_id: str, *, ends_within: Callable[[float], bool]) -> None:
    """Send heartbeats until the parent process or the session has ended. A failed call is retried after an interval."""
    with suppress(RequestRefused):
        while True:
            with suppress(CallFailed):
                client.ask(KeepSession(session_id=session_id))
            if ends_within(HEARTBEAT_INTERVAL_S):
                return


if __name__ == "__main__":
    _, function, kept_session = sys.argv
    send_heartbeats(
        ControlClient(connect_user(), function),
        kept_session,
        ends_within=lambda seconds: bool(select.select([sys.stdin], [], [], seconds)[0]),
    )
