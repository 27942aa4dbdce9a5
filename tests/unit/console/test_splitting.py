"""Page Splitting's trials and sessions: told as the splitter would do it, kept while the console runs."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Semaphore, Thread
from typing import Any, cast

import pytest

from sluice.console.kept_sessions import MAX_KEPT, KeptSessions, TooManySessions
from sluice.console.sites import KnownSite
from sluice.console.trials import MAX_TOLD, try_message
from sluice.errors import BadFilter, BadRequest, RequestRefused
from sluice.operations import Operation
from sluice.operator.documents import BadFile
from sluice.operator.functions import ControlClient
from sluice.operator.messages import sight_of_file
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.operations import (
    EndedSession,
    KeepSession,
    QueueView,
    SessionStatus,
    SessionView,
    SplittingView,
    StartSession,
    StopSession,
)
from sluice.splitting.sessions.state import Status

MESSAGE = json.dumps({"Body": "{}", "MessageAttributes": {"user": {"DataType": "String", "StringValue": "ada"}}})


def a_session(number: int, pattern: str, *, mode: Mode = Mode.STEAL, status: Status = Status.READY) -> SessionView:
    return SessionView(
        session_id=f"s{number}",
        key=f"s{number}",
        owner=f"owner {number}",
        status=status,
        reason="",
        started_at_ms=number,
        heartbeat_at_ms=number,
        messages=0,
        filters={"orders": QueueFilter(filter=Filter(attributes=(("user", pattern),)), mode=mode)},
        queues=(),
    )


@dataclass(slots=True)
class Splits:
    """A site that has these sessions on one queue."""

    sessions: Sequence[SessionView]

    def once(self, what: str, task: Any) -> "Splits":
        assert what == "splitting"
        return self

    def result(self) -> SplittingView:
        queue = QueueView(queue_id="orders", source="s", main="m", fifo=False, sns=False, s3_event=False)
        return SplittingView(queues=(queue,), sessions=tuple(self.sessions))


def told(sessions: Sequence[SessionView], **fields: str) -> Mapping[str, Any]:
    site = cast("KnownSite", Splits(sessions))
    return try_message(site, {"queue": "orders", "message": MESSAGE, **fields})


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {each["session_id"]: each["verdict"] for each in found["sessions"]}


def test_each_session_is_told_as_the_line_has_it() -> None:
    found = told(
        [
            a_session(1, "^bob$"),
            a_session(2, "^ada$", mode=Mode.MIRROR),
            a_session(3, "^ada$"),
            a_session(4, "^a"),
        ]
    )
    assert verdicts(found) == {"s1": "leaves", "s2": "gets a copy", "s3": "takes", "s4": "too late"}
    assert found["taker"] == "s3"
    [condition] = found["sessions"][0]["conditions"]
    assert condition == {"place": "message_filter.user", "asked": "^bob$", "answer": "no"}


def test_a_filter_that_isnt_started_stands_last() -> None:
    filters = json.dumps({"split_queues": {"orders": {"message_filter": {"user": "ada"}}}})
    assert verdicts(told([a_session(1, "^bob$")], filters=filters)) == {"s1": "leaves", "": "takes"}
    assert verdicts(told([a_session(1, "^ada$")], filters=filters)) == {"s1": "takes", "": "too late"}


def test_a_session_that_isnt_routed_to_yet_isnt_asked() -> None:
    found = told([a_session(1, "^ada$", status=Status.STARTING)])
    assert (found["taker"], found["sessions"]) == (None, [])
    assert found["not_routed"] == [{"session_id": "s1", "owner": "owner 1", "status": Status.STARTING}]


def test_of_many_sessions_that_leave_it_the_first_are_told() -> None:
    found = told([*(a_session(number, "^bob$") for number in range(MAX_TOLD + 5)), a_session(9_999, "^ada$")])
    assert (len(found["sessions"]), found["left_out"], found["taker"]) == (MAX_TOLD + 1, 5, "s9999")


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"message": "{"}, BadFile, "message.json: "),
        ({"message": "[]"}, BadFile, "is no map"),
        ({"filters": "split_queues: {orders: {message_filter: {user: '('}}}"}, BadFilter, "split_queues.orders"),
        (
            {"filters": "split_queues: {memes: {message_filter: {user: a}}}"},
            BadRequest,
            "there is none for queue orders",
        ),
        ({"queue": "others"}, BadRequest, "there is no split queue 'others'; there are orders"),
    ],
)
def test_what_is_wrong_is_said_in_the_commands_words(fields: dict[str, str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        told([], **fields)


def test_a_file_and_a_form_read_a_message_alike(tmp_path: Any) -> None:
    (tmp_path / "message.json").write_text(MESSAGE)
    assert sight_of_file(tmp_path / "message.json", envelope=Envelope()).texts == {"user": ("ada",)}


@dataclass(slots=True)
class Control:
    """Says yes to all, and hears who is kept; after so many heartbeats the session is gone."""

    beats: int = 2
    kept: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    gone: Event = field(default_factory=Event)
    started: int = 0

    def ask(self, operation: Operation[Any]) -> Any:
        match operation:
            case StartSession():
                self.started += 1
                return a_session(self.started, "^ada$")
            case KeepSession(session_id=session_id):
                self.kept.append(session_id)
                if len(self.kept) >= self.beats:
                    self.gone.set()
                    raise RequestRefused("no such session")
                return SessionStatus(session_id=session_id, status=Status.READY, reason="")
            case StopSession(session_id=session_id):
                self.stopped.append(session_id)
                return EndedSession(session_id=session_id, reason="Stopped")
        raise AssertionError(operation)


ASKED = StartSession(filters={"orders": QueueFilter(filter=Filter(jq="true"))}, owner="me")


@dataclass
class Silent(Control):
    """One that starts sessions, and says nothing of their end until it is let."""

    answers: Event = field(default_factory=Event)
    asked: Semaphore = field(default_factory=lambda: Semaphore(0))

    def ask(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, StopSession):
            self.asked.release()
            self.answers.wait(30)
        return super().ask(operation)


def test_a_session_is_kept_until_it_is_gone() -> None:
    control, sessions = Control(), KeptSessions(every_s=0.001)
    view = sessions.start(cast("ControlClient", control), ASKED)
    assert control.gone.wait(10)
    assert control.kept == [view.session_id] * 2
    sessions.end()
    assert control.stopped in ([], [view.session_id])  # it may be ended before the refusal was seen to


def test_the_consoles_end_ends_what_it_keeps() -> None:
    control, sessions = Control(), KeptSessions(every_s=60)
    view = sessions.start(cast("ControlClient", control), ASKED)
    sessions.end()
    sessions.end()
    assert control.stopped == [view.session_id]


def test_the_consoles_end_asks_for_all_of_them_at_once_and_waits_for_no_answer_that_doesnt_come() -> None:
    control, sessions = Silent(), KeptSessions(every_s=60, ends_within_s=0.1)
    for _ in range(3):
        sessions.start(cast("ControlClient", control), ASKED)
    ending = Thread(target=sessions.end)
    ending.start()
    ending.join(10)
    still_waits = ending.is_alive()
    control.answers.set()
    ending.join()
    assert not still_waits
    assert all(control.asked.acquire(timeout=10) for _ in range(3))


def test_a_console_keeps_no_more_than_it_may() -> None:
    control, sessions = Control(), KeptSessions(every_s=60)
    for _ in range(MAX_KEPT):
        sessions.start(cast("ControlClient", control), ASKED)
    with pytest.raises(TooManySessions):
        sessions.start(cast("ControlClient", control), ASKED)
    sessions.end()
