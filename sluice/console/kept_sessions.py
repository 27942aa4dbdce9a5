"""Sessions that the console starts, and keeps until they are stopped or it ends itself."""

import atexit
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

from sluice.console.requests import number_in, text_in
from sluice.console.sites import Document, KnownSite
from sluice.console.trials import filters_of_form
from sluice.errors import SluiceError
from sluice.operator.functions import SPLITTING, ControlClient
from sluice.operator.sessions import HEARTBEAT_EVERY_S, OpenSession, owner_here, session_document
from sluice.splitting.operations import MAX_TIME_LIMIT_S, AnySession, StartSession, StopSession

MAX_KEPT = 100  # sessions of one console
ENDS_WITHIN_S = 5.0  # all of them, as it ends
KEPT = "kept sessions"


class TooManySessions(SluiceError):
    """The console keeps as many as it may."""


@dataclass(slots=True)
class KeptSessions:
    """Sessions of one site that this console started: their heartbeat goes on while it runs. Safe for threads."""

    every_s: float = HEARTBEAT_EVERY_S
    ends_within_s: float = ENDS_WITHIN_S
    _kept: dict[str, tuple[OpenSession, Thread]] = field(default_factory=dict)
    _is_registered: bool = False
    _lock: Lock = field(default_factory=Lock)

    def start(self, client: ControlClient, asked: StartSession) -> AnySession:
        """Start a session and keep it. Raises `TooManySessions`, and what asking raises."""
        with self._lock:
            if len(self._kept) >= MAX_KEPT:
                raise TooManySessions(f"this console keeps {MAX_KEPT} sessions already: stop some")
            if not self._is_registered:
                atexit.register(self.end)
                self._is_registered = True
        opened = OpenSession(client, client.ask(asked))
        thread = Thread(target=self._keep, args=(opened,), name="heartbeat", daemon=True)
        with self._lock:
            self._kept[opened.view.session_id] = opened, thread
            thread.start()
        return opened.view

    def stop(self, client: ControlClient, session_id: str) -> AnySession:
        """End a session, whoever started it. Raises what asking raises."""
        self._forget(session_id)
        return client.ask(StopSession(session_id=session_id))

    def end(self) -> None:
        """End all of them at once, so that what they haven't read goes back.

        Nobody waits long for that: without a heartbeat a session ends by itself.
        """
        with self._lock:
            kept = list(self._kept.values())
        for opened, _ in kept:
            opened.ended.set()
        deadline_s = time.monotonic() + self.ends_within_s
        for _, thread in kept:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _keep(self, opened: OpenSession) -> None:
        opened.keep(self.every_s)
        is_ours = self._forget(opened.view.session_id)  # who stops it has done so before
        if is_ours and not opened.reason:
            with suppress(SluiceError):
                opened.client.ask(StopSession(session_id=opened.view.session_id))

    def _forget(self, session_id: str) -> bool:
        with self._lock:
            kept = self._kept.pop(session_id, None)
        if kept is None:
            return False
        kept[0].ended.set()
        return True


def start_session(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Start a session with the filters of a form. Raises what `sluice split start` raises."""
    limit_s = number_in(fields, "time_limit_s", least=1, most=MAX_TIME_LIMIT_S) if "time_limit_s" in fields else None
    asked = StartSession(
        filters=filters_of_form(fields),
        owner=owner_here(),
        key=text_in(fields, "key", default="") or None,
        time_limit_s=limit_s,
    )
    return session_document(_kept(site).start(site.client(SPLITTING), asked))


def stop_session(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """End a session. Raises what `sluice split stop` raises."""
    return session_document(_kept(site).stop(site.client(SPLITTING), text_in(fields, "session_id")))


def _kept(site: KnownSite) -> KeptSessions:
    return site.memory.of(KEPT, KeptSessions)
