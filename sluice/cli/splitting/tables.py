"""What the commands of splitting show of queues, sessions, trials and routed messages: to people, and to programs."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.cli.output import show_table
from sluice.cli.terminal import note
from sluice.errors import BadConfiguration
from sluice.operator.logs import FunctionLogs
from sluice.operator.sessions import session_document
from sluice.splitting.operations import AnySession, SessionsView, SessionView
from sluice.splitting.routing.routed import EVENT, RoutedMessage, read
from sluice.splitting.routing.trials import Trial


def document_of(found: SessionsView) -> dict[str, Any]:
    """Make JSON of all sessions."""
    return {"version": found.version, "sessions": [session_document(session) for session in found.sessions]}


def show_sessions(sessions: Iterable[SessionView]) -> None:
    """Show a line a session."""
    rows = [
        (
            each.session_id,
            each.owner,
            time.strftime("%H:%M:%S", time.localtime(each.started_at_ms / 1000)),
            each.status,
            each.reason,
            ", ".join(f"{queue.queue_id} ({queue.mode})" for queue in each.queues),
            each.messages,
            sum(queue.returned for queue in each.queues),
        )
        for each in sessions
    ]
    show_table(("session", "owner", "since", "status", "", "queues", "messages", "returned"), rows)


def show_session(session: AnySession) -> None:
    """Show a line a queue of a session."""
    queues: list[tuple[object, ...]] = [(each.queue_id, each.mode, each.url, each.returned) for each in session.queues]
    rows = [(session.session_id, session.status, *queue) for queue in queues or [("", "", "", 0)]]
    show_table(("session", "status", "queue", "mode", "url", "returned"), rows)


def show_trials(trials: Mapping[str, Trial]) -> None:
    """Show what each condition found, and then whose filter takes the message."""
    conditions = [(queue_id, each) for queue_id, trial in trials.items() for each in trial.conditions]
    rows = [(queue_id, each.place, each.asked, each.answer) for queue_id, each in conditions]
    show_table(("queue", "condition", "asks for", "found"), rows)
    for queue_id, trial in trials.items():
        note(f"{queue_id}: {'takes the message' if trial.matches else 'leaves the message'}")


SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class BadPeriod(BadConfiguration):
    """A text that is no period of time."""


def seconds_of(period: str) -> int:
    """Read `90s`, `5m`, `2h` or `1d`. Raises `BadPeriod`."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", period)
    if found is None:
        raise BadPeriod(f"--since: {period[:80]!r} is no number with s, m, h or d after it, as 5m")
    return int(found[1]) * SECONDS[found[2]]


def new_messages(logs: FunctionLogs, *, session: str | None, queue_id: str | None) -> Iterator[RoutedMessage]:
    """Yield what was routed since the last call: to this session, by its id or key, and of this queue. None is any."""
    for line in logs.new_lines(EVENT, now_ms=int(time.time() * 1_000)):
        for each in read(line.text, at_ms=line.at_ms):
            if session in {None, each.session, each.key} and queue_id in {None, each.queue}:
                yield each


def shown(each: RoutedMessage) -> str:
    """Write a message as a line for people."""
    at = time.strftime("%H:%M:%S", time.localtime(each.at_ms / 1000))
    who = each.session if each.key == each.session else f"{each.session} ({each.key})"
    return f"{at}  {each.queue}  {each.mode:<6}  {who}  {each.message}"
