"""What operators ask of the control function, as JSON: one operation each, parsed once, with a plain result.

The command line is one asker; a request from anywhere else is checked as strictly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import BadConfiguration
from sluice.splitting.control import Control
from sluice.splitting.filters.files import parse_filters
from sluice.splitting.filters.jq import CompileProblem
from sluice.splitting.sessions.codec import encode_filters
from sluice.splitting.sessions.lifecycle import Registry, Session, queue_of

# After which there may be more to do.
CHANGES = frozenset({"start", "stop", "tick", "sweep"})
MAX_TIME_LIMIT_S = 7 * 24 * 60 * 60


class BadRequest(BadConfiguration):
    """A request that names no operation, or lacks a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of one invocation. `counts` are the messages that sessions were sent, by session id."""

    control: Control
    compile_problem: CompileProblem
    counts: Callable[[], Mapping[str, int]]
    url: Callable[[str], str]  # of a queue, by name

    def perform(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Does what is asked. Raises a `BadConfiguration` for what the asker did wrong: nothing was changed then."""
        operations: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "start": self._start,
            "stop": self._stop,
            "heartbeat": self._heartbeat,
            "status": self._status,
            "list": self._list,
            "tick": self._tick,
            "sweep": self._sweep,
        }
        name = request.get("op") if isinstance(request, Mapping) else None
        if not isinstance(name, str) or name not in operations:
            raise BadRequest(f"no such operation: {name!r}; there are {', '.join(operations)}")
        return operations[name](request)

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        time_limit_s = request.get("time_limit_s")
        if time_limit_s is not None and not (type(time_limit_s) is int and 0 < time_limit_s <= MAX_TIME_LIMIT_S):
            raise BadRequest(f"time_limit_s {time_limit_s!r} is not from 1 to {MAX_TIME_LIMIT_S}")
        session_id = self.control.start(
            parse_filters(request.get("filters"), compile_problem=self.compile_problem),
            owner=_text(request, "owner"),
            key=_text_or_none(request, "key"),
            time_limit_s=time_limit_s,
        )
        return self._session(self.control.view(), session_id)

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session_id = _text(request, "session_id")
        self.control.stop(session_id, reason=_text_or_none(request, "reason"))
        return self._session(self.control.view(), session_id)

    def _heartbeat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = self.control.heartbeat(_text(request, "session_id"))
        return {"session_id": session.session_id, "status": session.status, "reason": session.reason}

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registry = self.control.view()
        if "session_id" in request:
            return self._session(registry, _text(request, "session_id"))
        counts = self.counts()
        sessions = sorted(registry.sessions.values(), key=lambda session: (session.started_at_ms, session.session_id))
        return {"version": registry.version, "sessions": [self._shown(registry, each, counts) for each in sessions]}

    def _session(self, registry: Registry, session_id: str) -> dict[str, Any]:
        session = registry.sessions.get(session_id)
        if session is None:
            reason = self.control.store.ended_reason(session_id) or ""
            return {"session_id": session_id, "status": "Ended", "reason": reason, "queues": []}
        return self._shown(registry, session, self.counts())

    def _shown(self, registry: Registry, session: Session, counts: Mapping[str, int]) -> dict[str, Any]:
        return {
            "session_id": session.session_id,
            "key": session.key,
            "owner": session.owner,
            "status": session.status,
            "reason": session.reason,
            "started_at_ms": session.started_at_ms,
            "heartbeat_at_ms": session.heartbeat_at_ms,
            "messages": counts.get(session.session_id, 0),
            "filters": encode_filters(session.filters),
            "queues": [self._queue(registry, session, queue_id) for queue_id in session.filters],
        }

    def _queue(self, registry: Registry, session: Session, queue_id: str) -> dict[str, Any]:
        name = queue_of(registry, session.session_id, queue_id)
        queue = registry.queues.get(name or "")
        return {
            "queue_id": queue_id,
            "mode": session.filters[queue_id].mode,
            "name": name,
            "url": None if name is None else self.url(name),
            "returned": 0 if queue is None else queue.returned,
        }

    def _list(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        return {
            "queues": [
                {
                    "queue_id": config.queue_id,
                    "source": self.url(config.source),
                    "main": self.url(config.main),
                    "fifo": config.fifo,
                    "sns": config.sns,
                    "s3_event": config.s3_event,
                }
                for config in self.control.configs.values()
            ]
        }

    def _tick(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        self.control.advance()
        return {}

    def _sweep(self, request: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - every operation takes the request
        self.control.advance()
        return {"swept": list(self.control.sweep())}


def _text(request: Mapping[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{name} is missing or no text")
    return value


def _text_or_none(request: Mapping[str, Any], name: str) -> str | None:
    return None if request.get(name) is None else _text(request, name)
