"""What the commands of splitting show of queues, sessions and trials: tables for people, documents for programs."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sluice.cli.output import note, show_table

if TYPE_CHECKING:  # what is asked is only for who asks
    from sluice.splitting.operations import AnySession, QueueView, SessionsView, SessionView
    from sluice.splitting.routing.trials import Trial


def plain(value: "AnySession | QueueView") -> dict[str, Any]:
    """Make JSON of what the control function says. What tells the kinds of sessions apart is between the two."""
    from msgspec import to_builtins  # noqa: PLC0415 - what is asked is only for who asks

    document: dict[str, Any] = to_builtins(value)
    document.pop("is", None)
    return document


def document_of(found: "SessionsView") -> dict[str, Any]:
    """Make JSON of all sessions."""
    return {"version": found.version, "sessions": [plain(session) for session in found.sessions]}


def show_sessions(sessions: "Iterable[SessionView]") -> None:
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


def show_session(session: "AnySession") -> None:
    """Show a line a queue of a session."""
    queues: list[tuple[object, ...]] = [(each.queue_id, each.mode, each.url, each.returned) for each in session.queues]
    rows = [(session.session_id, session.status, *queue) for queue in queues or [("", "", "", 0)]]
    show_table(("session", "status", "queue", "mode", "url", "returned"), rows)


def show_trials(trials: "Mapping[str, Trial]") -> None:
    """Show what each condition found, and then whose filter takes the message."""
    conditions = [(queue_id, each) for queue_id, trial in trials.items() for each in trial.conditions]
    rows = [(queue_id, each.place, each.asked, each.answer) for queue_id, each in conditions]
    show_table(("queue", "condition", "asks for", "found"), rows)
    for queue_id, trial in trials.items():
        note(f"{queue_id}: {'takes the message' if trial.matches else 'leaves the message'}")
