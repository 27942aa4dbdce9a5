"""Page Splitting's trials: told as the splitter would do it."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from sluice.console.sites import BudgetedSite
from sluice.console.trials import MAX_LEAVING, try_message
from sluice.errors import BadFilter, BadRequest
from sluice.operator.documents import BadFile
from sluice.operator.messages import read_filter_input
from sluice.splitting.filters.texts import Envelope
from sluice.splitting.filters.values import Filter, Mode, QueueFilter
from sluice.splitting.operations import (
    QueueView,
    SessionView,
    SplittingView,
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

    def run_once(self, what: str, task: Any) -> "Splits":
        assert what == "splitting"
        return self

    def result(self) -> SplittingView:
        queue = QueueView(queue_id="orders", source="s", main="m", fifo=False, sns=False, s3_event=False)
        return SplittingView(queues=(queue,), sessions=tuple(self.sessions))


def told(sessions: Sequence[SessionView], **fields: str) -> Mapping[str, Any]:
    site = cast("BudgetedSite", Splits(sessions))
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
    found = told([*(a_session(number, "^bob$") for number in range(MAX_LEAVING + 5)), a_session(9_999, "^ada$")])
    assert (len(found["sessions"]), found["left_out"], found["taker"]) == (MAX_LEAVING + 1, 5, "s9999")


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
    assert read_filter_input(tmp_path / "message.json", envelope=Envelope()).texts == {"user": ("ada",)}
