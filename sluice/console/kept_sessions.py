"""Sessions that the console starts, and keeps until they are stopped or it ends itself."""

import atexit
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any

from sluice.aws.operator.control_client import SPLITTING, ControlClient
from sluice.cli.splitting.sessions import HEARTBEAT_EVERY_S, owner_here
from sluice.cli.splitting.tables import plain
from sluice.console.requests import number_in, text_in
from sluice.console.sites import Document, KnownSite
from sluice.console.trials import filters_of_form
from sluice.errors import CallFailed, RequestRefused, SluiceError
from sluice.splitting.operations import MAX_TIME_LIMIT_S, AnySession, KeepSession, StartSession, StopSession
from sluice.splitting.sessions.state import ALIVE

MAX_KEPT = 100  # sessions of one console
ENDS_WITHIN_S = 5.0  # all of them, as it ends
KEPT = "kept sessions"


class TooManySessions(SluiceError):
    """The console keeps as many as it may."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What keeps one session, until it is told that this ends."""

    thread: Thread
    ended: Event


@dataclass(slots=True)
class KeptSessions:
    """Sessions of one site that this console started: their heartbeat goes on while it runs. Safe for threads."""

    every_s: float = HEARTBEAT_EVERY_S
    ends_within_s: float = ENDS_WITHIN_S
    _heartbeats: dict[str, Heartbeat] = field(default_factory=dict)
    _client: ControlClient | None = None
    _lock: Lock = field(default_factory=Lock)

    def start(self, client: ControlClient, asked: StartSession) -> AnySession:
        """Start a session and keep it. Raises `TooManySessions`, and what asking raises."""
        with self._lock:
            if len(self._heartbeats) >= MAX_KEPT:
                raise TooManySessions(f"this console keeps {MAX_KEPT} sessions already: stop some")
            if self._client is None:
                atexit.register(self.end)
            self._client = client
        view = client.ask(asked)
        ended = Event()
        thread = Thread(target=self._keep, args=(view.session_id, ended), name="heartbeat", daemon=True)
        with self._lock:
            self._heartbeats[view.session_id] = Heartbeat(thread, ended)
            thread.start()
        return view

    def stop(self, client: ControlClient, session_id: str) -> AnySession:
        """End a session, whoever started it. Raises what asking raises."""
        self._forget(session_id)
        return client.ask(StopSession(session_id=session_id))

    def end(self) -> None:
        """End all of them at once, so that what they haven't read goes back.

        Nobody waits long for that: without a heartbeat a session ends by itself.
        """
        with self._lock:
            heartbeats = list(self._heartbeats.values())
        for each in heartbeats:
            each.ended.set()
        deadline_s = time.monotonic() + self.ends_within_s
        for each in heartbeats:
            each.thread.join(max(0.0, deadline_s - time.monotonic()))

    def _keep(self, session_id: str, ended: Event) -> None:
        is_there = True
        while is_there and not ended.wait(self.every_s):
            is_there = self._beat(session_id)
        is_ours = self._forget(session_id)  # who stops it has done so before
        if is_there and is_ours and self._client is not None:
            with suppress(SluiceError):
                self._client.ask(StopSession(session_id=session_id))

    def _beat(self, session_id: str) -> bool:
        """Say that the session is wanted; False where it has gone."""
        if self._client is None:
            return False
        try:
            return self._client.ask(KeepSession(session_id=session_id)).status in ALIVE
        except RequestRefused:
            return False
        except CallFailed:
            return True  # the next one makes up for it

    def _forget(self, session_id: str) -> bool:
        with self._lock:
            heartbeat = self._heartbeats.pop(session_id, None)
        if heartbeat is None:
            return False
        heartbeat.ended.set()
        return True


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
