"""A session from start to end as its owner keeps it: started, made ready, its heartbeat kept, ended."""

import getpass
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.codec import plain
from sluice.errors import CallFailed, RequestRefused, SluiceError
from sluice.operator.functions import ControlClient
from sluice.splitting.filters.values import QueueFilters
from sluice.splitting.operations import AnySession, FindSession, KeepSession, QueueView, StartSession, StopSession
from sluice.splitting.sessions.state import ALIVE, Status

READY_WITHIN_S = 960.0  # more than the function's own limit for the set-up, which says why
POLL_S = 0.25
HEARTBEAT_EVERY_S = 8.0  # three may fail before the session counts as unused


def owner_here() -> str:
    """Name who asks, as others see it of a session."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


class SessionFailed(SluiceError):
    """The session didn't become ready, or ended before its owner ended it."""


@dataclass(slots=True)
class OpenSession:
    """A ready session. `ended` is set, with `reason`, when it ends by itself or is stopped elsewhere."""

    client: ControlClient
    view: AnySession
    ended: threading.Event = field(default_factory=threading.Event)
    reason: str = ""

    def url_of(self, queue_id: str) -> str:
        """Give the URL of its queue for this split queue. Raises `SessionFailed` where it has none."""
        for queue in self.view.queues:
            if queue.queue_id == queue_id and queue.url is not None:
                return queue.url
        raise SessionFailed(f"the session has no queue for {queue_id!r}")

    def beat(self) -> None:
        """Send one heartbeat; a call that fails is made up for by the next."""
        try:
            kept = self.client.ask(KeepSession(session_id=self.view.session_id))
        except RequestRefused as error:
            self._end(str(error))
        except CallFailed:
            return
        else:
            if kept.status not in ALIVE:
                self._end(kept.reason or kept.status)

    def keep(self, every_s: float = HEARTBEAT_EVERY_S) -> None:
        """Send heartbeats until the session ends, here or elsewhere."""
        while not self.ended.wait(every_s):
            self.beat()

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.ended.set()


@contextmanager
def session(
    client: ControlClient,
    filters: QueueFilters,
    *,
    owner: str,
    key: str | None = None,
    time_limit_s: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[OpenSession]:
    """Start a session, give it when it is ready, keep its heartbeat, and stop it at the end, whatever ends it.

    Raises `SessionFailed` where it doesn't become ready, and whatever asking raises.
    """
    view = client.ask(StartSession(filters=filters, owner=owner, key=key, time_limit_s=time_limit_s))
    session_id = view.session_id
    try:
        deadline, told = time.monotonic() + READY_WITHIN_S, None
        while view.status in ALIVE and view.status is not Status.READY:
            if time.monotonic() > deadline:
                raise SessionFailed(f"the session wasn't ready in {READY_WITHIN_S:g} s")
            if view.status is not told:
                progress(told := view.status)
            time.sleep(POLL_S)
            view = client.ask(FindSession(session_id=session_id))
        if view.status != Status.READY:
            raise SessionFailed(f"{view.status}: {view.reason}")
        opened = OpenSession(client, view)
        with _kept_alive(opened):
            yield opened
    finally:
        with suppress(RequestRefused):  # it has ended already
            client.ask(StopSession(session_id=session_id))


@contextmanager
def _kept_alive(opened: OpenSession) -> Iterator[None]:
    beating = threading.Thread(target=opened.keep, name="heartbeat", daemon=True)
    beating.start()
    try:
        yield
    finally:
        opened.ended.set()
        beating.join()


def session_document(value: "AnySession | QueueView") -> dict[str, Any]:
    """Make JSON of what the control function says. What tells the kinds of sessions apart is between the two."""
    document: dict[str, Any] = plain(value)
    document.pop("is", None)
    return document
