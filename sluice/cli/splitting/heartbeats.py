"""A session's heartbeat from a process of its own: a debugger that stops a program stops all of its threads."""

import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.aws.connections import environment_of, of_user
from sluice.errors import CallFailed, RequestRefused
from sluice.operator.functions import ControlClient
from sluice.operator.sessions import HEARTBEAT_EVERY_S
from sluice.splitting.operations import KeepSession

PACKAGES = Path(__file__).parents[3]  # where `sluice` is


@contextmanager
def kept_by_another(client: ControlClient, session_id: str, *, environment: Mapping[str, str]) -> Iterator[None]:
    """Have another process, with this environment, keep a session alive. Killed, we end it: its input ends."""
    # From where this package is, as files of the working directory may have any name; ctrl-C isn't meant for it.
    keeper = subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", __name__, client.function, session_id],
        cwd=PACKAGES,
        stdin=subprocess.PIPE,
        env=environment_of(client.connection, environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        keeper.terminate()
        keeper.communicate()


def keep(client: ControlClient, session_id: str, *, ends_within: Callable[[float], bool]) -> None:
    """Send heartbeats until the parent ends, or the session has; a call that fails is made up for by the next."""
    with suppress(RequestRefused):
        while True:
            with suppress(CallFailed):
                client.ask(KeepSession(session_id=session_id))
            if ends_within(HEARTBEAT_EVERY_S):
                return


if __name__ == "__main__":
    _, function, kept = sys.argv
    keep(
        ControlClient(of_user(), function),
        kept,
        ends_within=lambda seconds: bool(select.select([sys.stdin], [], [], seconds)[0]),
    )
