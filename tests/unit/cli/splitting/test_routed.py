"""What a splitter's log says of routed messages: lines of at most fifty, read back as they were."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sluice.cli.program import app
from sluice.cli.splitting.tables import BadPeriod, format_message, parse_period, read_new_messages
from sluice.errors import CallFailed
from sluice.operator.logs import LATE_MS, FunctionLogs
from sluice.splitting.filters.values import Mode
from sluice.splitting.routing.routed import EVENT, MESSAGES_A_LINE, Routed, RoutedMessage, format_lines, parse_routed
from tests.unit.cli.pipeline.test_commands import serving


def routed(session: str, *messages: str, mode: Mode = Mode.STEAL) -> Routed:
    return Routed(session=session, key=f"key-{session}", mode=mode, messages=messages)


def text(line: Sequence[dict[str, Any]], queue: str = "q", event: str = EVENT) -> str:
    return json.dumps({"level": "INFO", "message": event, "service": "splitter", "queue": queue, "routed": line})


IDS = st.lists(st.integers(0, 9_999).map(str), min_size=1, max_size=3 * MESSAGES_A_LINE).map(tuple)
ROUTED = st.lists(st.builds(Routed, session=st.text(), key=st.text(), mode=st.sampled_from(Mode), messages=IDS))


@given(ROUTED)
def test_what_is_logged_is_read_in_as_few_lines_as_there_can_be(batch: list[Routed]) -> None:
    logged = list(format_lines(batch))
    sizes = [sum(len(each["messages"]) for each in line) for line in logged]
    assert all(size == MESSAGES_A_LINE for size in sizes[:-1])
    assert all(0 < size <= MESSAGES_A_LINE for size in sizes)
    found = [each for line in logged for each in parse_routed(text(line), at_ms=7)]
    assert found == [
        RoutedMessage(at_ms=7, queue="q", session=each.session, key=each.key, mode=each.mode, message=message)
        for each in batch
        for message in each.messages
    ]


@pytest.mark.parametrize(
    "said",
    [
        f"START RequestId: {EVENT}",
        "[]",
        text([], event="RecordFailed"),
        json.dumps({"message": EVENT}),
        text([{"session": "s"}]),
    ],
)
def test_what_is_about_something_else_is_passed_over(said: str) -> None:
    assert list(parse_routed(said, at_ms=0)) == []


@dataclass
class FakeLogs:
    """CloudWatch Logs with lines that come when they come. Without `ids`, as the embedded cloud has it."""

    events: list[tuple[int, str]] = field(default_factory=list)
    ids: bool = True
    refuses: str = ""  # token, as one that is too old
    asked_from: list[int] = field(default_factory=list)

    def filter_log_events(
        self,
        *,
        logGroupName: str,  # noqa: N803 - AWS's
        startTime: int,  # noqa: N803 - AWS's
        filterPattern: str,  # noqa: N803 - AWS's
        nextToken: str = "0",  # noqa: N803 - AWS's
    ) -> dict[str, Any]:
        assert (logGroupName, filterPattern) == ("group", f'"{EVENT}"')
        if nextToken == self.refuses:
            raise ClientError({"Error": {"Code": "InvalidParameterException", "Message": ""}}, "FilterLogEvents")
        if nextToken == "0":
            self.asked_from.append(startTime)
        found = [
            {"timestamp": at_ms, "message": said, "logStreamName": "s"} | ({"eventId": f"{number}"} if self.ids else {})
            for at_ms, number, said in sorted((each[0], number, each[1]) for number, each in enumerate(self.events))
            if at_ms >= startTime
        ]
        start, end = int(nextToken), int(nextToken) + 2
        return {"events": found[start:end]} | ({"nextToken": str(end)} if end < len(found) else {})


def tailed(logs: FunctionLogs, *, session: str | None = None, queue_id: str | None = None) -> list[str]:
    return [message.message for message in read_new_messages(logs, session=session, queue_id=queue_id)]


@pytest.mark.parametrize("ids", [True, False])
def test_each_line_is_given_once_also_one_that_comes_late(ids: bool) -> None:
    fake = FakeLogs(ids=ids)
    logs = FunctionLogs(fake, "group", 1_000)

    def new(now_ms: int) -> str:
        return "".join(line.text for line in logs.read_new_lines(EVENT, now_ms=now_ms))

    assert new(5_000) == ""
    fake.events += [(500, "a"), (LATE_MS, "c"), (2_000, "b")]
    assert [new(LATE_MS + 2_000), new(LATE_MS + 2_500)] == ["bc", ""]
    fake.events += [(2_001, "too late"), (2_600, "late"), (LATE_MS, "d")]
    assert [new(LATE_MS + 2_700), new(LATE_MS + 2_700)] == ["lated", ""]
    assert fake.asked_from == [1_000, 1_000, 2_000, 2_500, 2_700]


def test_who_may_ask_no_more_goes_on_there_the_next_time() -> None:
    fake = FakeLogs([(at_ms, str(at_ms)) for at_ms in range(1, 8)])
    logs = FunctionLogs(fake, "group", 0)

    def new(*may: bool) -> str:
        allowed = iter(may)
        return "".join(line.text for line in logs.read_new_lines(EVENT, now_ms=LATE_MS + 9, may_go_on=allowed.__next__))

    assert [new(False), new(True, False), new(), new()] == ["12", "3456", "7", ""]
    assert fake.asked_from == [0, 9]


def test_who_may_not_go_on_there_begins_again_and_gives_no_line_twice() -> None:
    fake = FakeLogs([(at_ms, str(at_ms)) for at_ms in range(1, 5)], refuses="2")
    logs = FunctionLogs(fake, "group", 0)
    assert len(list(logs.read_new_lines(EVENT, now_ms=9, may_go_on=lambda: False))) == 2
    with pytest.raises(CallFailed):
        list(logs.read_new_lines(EVENT, now_ms=9))
    fake.refuses = ""
    assert [line.text for line in logs.read_new_lines(EVENT, now_ms=9)] == ["3", "4"]


def routed_(message: str, session: str = "s") -> dict[str, Any]:
    return next(format_lines([routed(session, message)]))[0]


def test_only_the_session_and_the_queue_that_are_asked_for_are_shown() -> None:
    both = [routed_("1", "a"), routed_("2", "b")]
    fake = FakeLogs([(0, text(both, "q")), (1, text(both, "r"))])
    asked = [{"session": "a"}, {"session": "key-b"}, {"queue_id": "r"}, {"session": "a", "queue_id": "x"}, {}]
    found = ["".join(tailed(FunctionLogs(fake, "group", 0), **each)) for each in asked]
    assert found == ["11", "22", "12", "", "1212"]


def test_a_line_for_people_has_the_key_where_it_says_more_than_the_id() -> None:
    each = RoutedMessage(at_ms=0, queue="q", session="s", key="k", mode=Mode.STEAL, message="m")
    assert format_message(each).split("  ", 1)[1] == "q  steal   s (k)  m"


@pytest.mark.parametrize(("period", "seconds"), [("90s", 90), ("5m", 300), ("2h", 7_200), ("1d", 86_400)])
def test_a_period_is_a_number_and_a_unit(period: str, seconds: int) -> None:
    assert parse_period(period) == seconds


@pytest.mark.parametrize("period", ["", "5", "m", "5 m", "-5m", "1w", "5m5s"])
def test_another_period_is_refused(period: str) -> None:
    with pytest.raises(BadPeriod, match="--since"):
        parse_period(period)


class FakeSite:
    """CloudFormation with the splitting stack's output, and CloudWatch Logs with one line."""

    def answer(self, target: str, _: str, body: str) -> tuple[str, str]:
        """Content type and text."""
        if target.startswith("Logs_"):
            assert json.loads(body)["logGroupName"] == "group"
            event = {"eventId": "1", "timestamp": 0, "message": text([routed_("m", "s"), routed_("n", "t")])}
            return "application/x-amz-json-1.1", json.dumps({"events": [event]})
        member = "<OutputKey>SplitterLogGroupName</OutputKey><OutputValue>group</OutputValue>"
        stack = f"<StackName>s</StackName><StackStatus>UPDATE_COMPLETE</StackStatus><Outputs><member>{member}</member>"
        result = f"<Stacks><member>{stack}</Outputs><CreationTime>2024-10-04T12:00:00Z</CreationTime></member></Stacks>"
        result = f"<DescribeStacksResult>{result}</DescribeStacksResult>"
        return "text/xml", f"<DescribeStacksResponse>{result}</DescribeStacksResponse>"


def test_the_command_prints_a_line_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeSite()) as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        run = CliRunner().invoke(app, ["split", "tail", "key-t", "--no-follow", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout) == {
        "at_ms": 0,
        "queue": "q",
        "session": "t",
        "key": "key-t",
        "mode": "steal",
        "message": "n",
    }
