"""A session from start to end as the command line keeps it: started, made ready, its heartbeat kept, ended."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.aws.operator.control_client import ControlClient
from sluice.errors import CallFailed, RequestRefused, SluiceError

READY_WITHIN_S = 180.0  # the lifecycle's own limit for the setup
POLL_S = 0.25
SETTING_UP = frozenset({"Starting", "ResourcesReady"})
ALIVE = SETTING_UP | {"Ready"}
HEARTBEAT_EVERY_S = 8.0  # three may fail before the session counts as unused


class SessionFailed(SluiceError):
    """The session didn't become ready, or ended before its owner ended it."""


@dataclass(slots=True)
class OpenSession:
    """A ready session. `ended` is set, with `reason`, when it ends by itself or is stopped elsewhere."""

    client: ControlClient
    document: dict[str, Any]
    ended: threading.Event = field(default_factory=threading.Event)
    reason: str = ""

    @property
    def session_id(self) -> str:
        """Its id."""
        session_id: str = self.document["session_id"]
        return session_id

    def url_of(self, queue_id: str) -> str:
        """The URL of its queue for this split queue. Raises `SessionFailed` where it has none."""
        for queue in self.document["queues"]:
            if queue["queue_id"] == queue_id:
                return str(queue["url"])
        raise SessionFailed(f"the session has no queue for {queue_id!r}")

    def beat(self) -> None:
        """One heartbeat; a call that fails is made up for by the next."""
        try:
            state = self.client.ask("heartbeat", session_id=self.session_id)
        except RequestRefused as error:
            self._end(str(error))
        except CallFailed:
            return
        else:
            if state["status"] not in ALIVE:
                self._end(state["reason"] or state["status"])

    def _end(self, reason: str) -> None:
        self.reason = reason
        self.ended.set()


@contextmanager
def session(
    client: ControlClient,
    filters: dict[str, Any],
    *,
    owner: str,
    key: str | None = None,
    time_limit_s: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[OpenSession]:
    """Starts a session, gives it when it is ready, keeps its heartbeat, and stops it at the end, whatever ends it."""
    started = client.ask("start", filters=filters, owner=owner, key=key, time_limit_s=time_limit_s)
    session_id = started["session_id"]
    try:
        ready = _until_ready(client, started, progress)
        opened = OpenSession(client, ready)
        with _kept_alive(opened):
            yield opened
    finally:
        with suppress(RequestRefused):  # it has ended already
            client.ask("stop", session_id=session_id)


def _until_ready(client: ControlClient, document: dict[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    deadline = time.monotonic() + READY_WITHIN_S
    while document["status"] in SETTING_UP:
        if time.monotonic() > deadline:
            raise SessionFailed(f"the session wasn't ready in {READY_WITHIN_S:g} s")
        progress(document["status"])
        time.sleep(POLL_S)
        document = client.ask("status", session_id=document["session_id"])
    if document["status"] != "Ready":
        raise SessionFailed(f"{document['status']}: {document['reason']}")
    return document


@contextmanager
def _kept_alive(opened: OpenSession) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_EVERY_S) and not opened.ended.is_set():
            opened.beat()

    beating = threading.Thread(target=beat, name="heartbeat", daemon=True)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()
