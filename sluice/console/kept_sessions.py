"""Sessions that the console starts, and keeps until they are stopped or it ends itself."""

import atexit
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any

from sluice.aws.operator.control_client import SPLITTING, ControlClient
from sluice.cli.splitting.sessions import HEARTBEAT_EVERY_S, owner_here
from sluice.cli.splitting.tables import plain
from sluice.console.forms import number_in, text_in
from sluice.console.sites import Document, KnownSite
from sluice.console.trials import filters_of_form
from sluice.errors import CallFailed, RequestRefused, SluiceError
from sluice.splitting.operations import MAX_TIME_LIMIT_S, AnySession, KeepSession, StartSession, StopSession
from sluice.splitting.sessions.state import ALIVE

MAX_KEPT = 100  # sessions of one console
KEPT = "kept sessions"


class TooManySessions(SluiceError):
    """The console keeps as many as it may."""


@dataclass(slots=True)
class KeptSessions:
    """Sessions of one site that this console started: their heartbeat goes on while it runs. Safe for threads."""

    every_s: float = HEARTBEAT_EVERY_S
    _ends: dict[str, Event] = field(default_factory=dict)
    _client: ControlClient | None = None
    _lock: Lock = field(default_factory=Lock)

    def start(self, client: ControlClient, asked: StartSession) -> AnySession:
        """Start a session and keep it. Raises `TooManySessions`, and what asking raises."""
        with self._lock:
            if len(self._ends) >= MAX_KEPT:
                raise TooManySessions(f"this console keeps {MAX_KEPT} sessions already: stop some")
            if self._client is None:
                atexit.register(self.end)
            self._client = client
        view = client.ask(asked)
        ended = Event()
        with self._lock:
            self._ends[view.session_id] = ended
        Thread(target=self._keep, args=(view.session_id, ended), name="heartbeat", daemon=True).start()
        return view

    def stop(self, client: ControlClient, session_id: str) -> AnySession:
        """End a session, whoever started it. Raises what asking raises."""
        self._forget(session_id)
        return client.ask(StopSession(session_id=session_id))

    def end(self) -> None:
        """End all of them, so that what they haven't read goes back at once."""
        for session_id in list(self._ends):
            if self._client is not None:
                with suppress(SluiceError):  # without a heartbeat it ends by itself
                    self.stop(self._client, session_id)

    def _keep(self, session_id: str, ended: Event) -> None:
        while self._client is not None and not ended.wait(self.every_s):
            try:
                kept = self._client.ask(KeepSession(session_id=session_id))
            except RequestRefused:
                break
            except CallFailed:
                continue  # the next one makes up for it
            if kept.status not in ALIVE:
                break
        self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        with self._lock:
            ended = self._ends.pop(session_id, None)
        if ended is not None:
            ended.set()


def start_session(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Start a session with the filters of a form. Raises what `sluice split start` raises."""
    asked = StartSession(
        filters=filters_of_form(fields),
        owner=owner_here(),
        key=text_in(fields, "key", default="") or None,
        time_limit_s=_time_limit_s(fields),
    )
    return plain(_kept(site).start(site.client(SPLITTING), asked))


def _time_limit_s(fields: Mapping[str, Any]) -> int | None:
    if "time_limit_s" not in fields:
        return None
    return number_in(fields, "time_limit_s", least=1, most=MAX_TIME_LIMIT_S, default=MAX_TIME_LIMIT_S)


def stop_session(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """End a session. Raises what `sluice split stop` raises."""
    return plain(_kept(site).stop(site.client(SPLITTING), text_in(fields, "session_id")))


def _kept(site: KnownSite) -> KeptSessions:
    return site.memory.of(KEPT, KeptSessions)
