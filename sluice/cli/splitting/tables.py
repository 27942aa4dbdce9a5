"""Prints tables of the splitting commands: sessions, split queues, tested filters and routed messages."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping

from sluice.cli.output import show_table
from sluice.cli.terminal import print_note
from sluice.errors import BadConfiguration
from sluice.operator.logs import FunctionLogs
from sluice.splitting.operations import AnySession, SessionView, SplittingView
from sluice.splitting.routing.routed import EVENT, RoutedMessage, parse_routed
from sluice.splitting.routing.trials import Trial

SESSION_COLUMNS = (
    *("session", "name", "owner", "key", "since", "status", "reason"),
    *("queues", "shadowed by", "messages", "returned"),
)


def show_sessions(sessions: Iterable[SessionView]) -> None:
    """Print a table with one line per session."""
    rows = [
        (
            session.session_id,
            session.name,
            session.owner,
            session.key,
            time.strftime("%H:%M:%S", time.localtime(session.started_at_ms / 1000)),
            session.status,
            session.reason,
            "; ".join(f"{queue.queue_id} ({queue.mode}): {queue.asks_for}" for queue in session.queues),
            ", ".join(dict.fromkeys(queue.shadowed_by for queue in session.queues if queue.shadowed_by)),
            session.messages,
            sum(queue.returned for queue in session.queues),
        )
        for session in sessions
    ]
    show_table(SESSION_COLUMNS, rows)


def show_splitting(view: SplittingView) -> None:
    """Print a table of all sessions, and a table of the queues that are being split or drained, if any."""
    show_sessions(view.sessions)
    rows = [
        (
            split.queue_id,
            split.phase,
            time.strftime("%H:%M:%S", time.localtime(split.phase_since_ms / 1000)),
            split.waits_for,
            "; ".join(f"{consumer}: {place}" for consumer, place in split.consumers.items()),
            split.not_moved,
        )
        for split in view.splits
    ]
    if rows:
        show_table(("queue", "phase", "since", "waits for", "consumers", "last problem"), rows)


def show_session(session: AnySession) -> None:
    """Print a table with one line per queue of a session."""
    queues: list[tuple[object, ...]] = [
        (queue.queue_id, queue.mode, queue.url, queue.returned) for queue in session.queues
    ]
    rows = [(session.session_id, session.status, *queue) for queue in queues or [("", "", "", 0)]]
    show_table(("session", "status", "queue", "mode", "url", "returned"), rows)


def show_trials(trials: Mapping[str, Trial]) -> None:
    """Print what each condition of the tested filters found in the message, and which filters take the message."""
    conditions = [(queue_id, condition) for queue_id, trial in trials.items() for condition in trial.conditions]
    rows = [(queue_id, condition.place, condition.asked, condition.answer) for queue_id, condition in conditions]
    show_table(("queue", "condition", "asks for", "found"), rows)
    for queue_id, trial in trials.items():
        print_note(f"{queue_id}: {'takes the message' if trial.matches else 'leaves the message'}")


SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class BadPeriod(BadConfiguration):
    """Raised if an option such as `--since` has a malformed period of time."""


def parse_period(period: str) -> int:
    """Convert a period of time, such as `90s`, `5m`, `2h` or `1d`, to seconds. Raises `BadPeriod`."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", period)
    if match is None:
        raise BadPeriod(f"--since: {period[:80]!r} is not a period: write a number and s, m, h or d, such as 5m")
    return int(match[1]) * SECONDS[match[2]]


def read_new_messages(logs: FunctionLogs, *, session: str | None, queue_id: str | None) -> Iterator[RoutedMessage]:
    """Yield the messages routed since the last call. `session` (an id or key) and `queue_id` select some; None: all."""
    for line in logs.read_new_lines(EVENT, now_ms=int(time.time() * 1_000)):
        for message in parse_routed(line.text, at_ms=line.at_ms):
            if session in {None, message.session, message.key} and queue_id in {None, message.queue}:
                yield message


def format_message(message: RoutedMessage) -> str:
    """Format a routed message as a line for people."""
    at = time.strftime("%H:%M:%S", time.localtime(message.at_ms / 1000))
    session = message.session if message.key == message.session else f"{message.session} ({message.key})"
    return f"{at}  {message.queue}  {message.mode:<6}  {session}  {message.message}"
