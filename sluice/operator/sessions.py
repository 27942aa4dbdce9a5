"""Runs a splitting session for its owner: starts it, waits until it is ready, sends heartbeats, and stops it."""

import getpass
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.codec import to_document
from sluice.errors import CallFailed, RequestRefused, SluiceError
from sluice.operator.functions import ControlClient
from sluice.splitting.filters.values import QueueFilters
from sluice.splitting.operations import AnySession, FindSession, KeepSession, QueueView, StartSession, StopSession
from sluice.splitting.sessions.state import ALIVE, Status

READY_WITHIN_S = 960.0  # The control function's own limit is shorter, and its error says why the session isn't ready.
POLL_S = 0.25
HEARTBEAT_INTERVAL_S = 8.0  # A session expires after three missed heartbeats.
GIVEN_UP_AFTER_S = 60.0  # After this number of seconds without a successful heartbeat, the session has expired.


class SessionFailed(SluiceError):
    """Raised if a session didn't become ready, or ended before its owner ended it."""


@dataclass(slots=True)
class OpenSession:
    """A ready session. `ended` is set, with a `reason`, when the session fails, expires or is stopped elsewhere."""

    client: ControlClient
    view: AnySession
    ended: threading.Event = field(default_factory=threading.Event)
    reason: str = ""
    say: Callable[[str], None] = lambda _: None
    now_s: Callable[[], float] = time.monotonic
    _failing_since_s: float | None = None

    def queue_url(self, queue_id: str) -> str:
        """Return the URL of the session's queue for a split queue. Raises `SessionFailed` if there is no such queue."""
        for queue in self.view.queues:
            if queue.queue_id == queue_id and queue.url is not None:
                return queue.url
        raise SessionFailed(f"the session has no queue for {queue_id!r}")

    def send_heartbeat(self) -> None:
        """Send a heartbeat. Prints a note if that fails. After 60 seconds of failures, the session counts as ended."""
        try:
            session_view = self.client.ask(KeepSession(session_id=self.view.session_id))
        except RequestRefused as error:
            self._end_session(str(error))
        except CallFailed as error:
            if self._failing_since_s is None:
                self._failing_since_s = self.now_s()
                self.say(f"heartbeats fail, and without them the session ends in 30 s: {error}")
            elif self.now_s() - self._failing_since_s >= GIVEN_UP_AFTER_S:
                self._end_session(f"no heartbeat for {GIVEN_UP_AFTER_S:.0f} s: {error}")
        else:
            self._failing_since_s = None
            if session_view.status not in ALIVE:
                self._end_session(session_view.reason or session_view.status)

    def send_heartbeats(self, every_s: float = HEARTBEAT_INTERVAL_S) -> None:
        """Send heartbeats every `every_s` seconds until the session ends for any reason."""
        while not self.ended.wait(every_s):
            self.send_heartbeat()

    def _end_session(self, reason: str) -> None:
        self.reason = reason
        self.ended.set()


@contextmanager
def open_session(
    client: ControlClient, filters: QueueFilters, *, progress: Callable[[str], None] = lambda _: None, **fields: Any
) -> Iterator[OpenSession]:
    """Start a session, yield it when it is ready, send its heartbeats, and stop it when the context ends.

    `fields` are further fields of `StartSession`. Raises `SessionFailed` if the session doesn't become ready, and the
    client's errors.
    """
    owner = f"{getpass.getuser()}@{socket.gethostname()}"  # Lists of sessions show this name to other users.
    view = client.ask(StartSession(**{"owner": owner, "filters": filters, **fields}))
    session_id = view.session_id
    try:
        deadline, last_status = time.monotonic() + READY_WITHIN_S, None
        while view.status in ALIVE and view.status is not Status.READY:
            if time.monotonic() > deadline:
                raise SessionFailed(f"the session wasn't ready in {READY_WITHIN_S:g} s")
            if view.status is not last_status:
                progress(last_status := view.status)
            time.sleep(POLL_S)
            view = client.ask(FindSession(session_id=session_id))
        if view.status != Status.READY:
            raise SessionFailed(f"{view.status}: {view.reason}")
        opened = OpenSession(client, view, say=progress)
        heartbeats = threading.Thread(target=opened.send_heartbeats, name="heartbeat", daemon=True)
        heartbeats.start()
        try:
            yield opened
        finally:
            opened.ended.set()
            heartbeats.join()
    finally:
        with suppress(RequestRefused):  # The session may have ended already.
            client.ask(StopSession(session_id=session_id))


def build_session_document(value: "AnySession | QueueView") -> dict[str, Any]:
    """Format a session or split queue for `--json`, without the field `is`, an internal type tag."""
    document: dict[str, Any] = to_document(value)
    document.pop("is", None)
    return document
