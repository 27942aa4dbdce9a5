"""`sluice split run --lambda` without AWS: events as Lambda makes them, and what of a batch is done."""

import json
import os
import queue
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from sluice.aws.connections import Connection
from sluice.aws.deployment import NotUsable
from sluice.cli.program import app
from sluice.cli.splitting.handlers import (
    BadHandler,
    EventQueue,
    LambdaContext,
    LocalFunction,
    build_record,
    invoke_repeatedly,
)
from sluice.cli.splitting.heartbeats import run_heartbeat_process, send_heartbeats
from sluice.errors import CallFailed, QueueGone, RequestRefused
from sluice.operator.functions import ControlClient, DeployedFunction
from sluice.operator.sessions import HEARTBEAT_INTERVAL_S, OpenSession
from tests.unit.cli.pipeline.test_commands import serving
from tests.unit.cli.splitting.test_commands import Failing, FakeControl, view_of

ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"
DEPLOYED = DeployedFunction(
    name="consumer",
    arn="arn:aws:lambda:eu-central-1:123456789012:function:consumer",
    handler="src/app.handle",
    timeout_s=30,
    memory_mb=256,
    variables={"TABLE": "orders"},
)


def test_a_record_is_as_lambda_gives_it() -> None:
    # As in https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html
    system = {"ApproximateReceiveCount": "1", "SentTimestamp": "1545082649183", "SenderId": "AIDA"}
    received = {
        "MessageId": "059f36b4",
        "ReceiptHandle": "AQEB",
        "MD5OfBody": "e4e68fb7",
        "Body": "hello",
        "Attributes": system,
        "MD5OfMessageAttributes": "2d2d",
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "1"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
        },
    }
    lists: dict[str, list[str]] = {"stringListValues": [], "binaryListValues": []}
    assert build_record(received, arn=ARN, region="eu-central-1") == {
        "messageId": "059f36b4",
        "receiptHandle": "AQEB",
        "body": "hello",
        "attributes": system,
        "messageAttributes": {
            "n": {"stringValue": "1", "dataType": "Number", **lists},
            "raw": {"binaryValue": "AAE=", "dataType": "Binary", **lists},
        },
        "md5OfBody": "e4e68fb7",
        "md5OfMessageAttributes": "2d2d",
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        "awsRegion": "eu-central-1",
    }


def record(message_id: str, *, group: str | None = None) -> dict[str, Any]:
    return {
        "messageId": message_id,
        "receiptHandle": f"handle-{message_id}",
        "body": message_id,
        "attributes": {} if group is None else {"MessageGroupId": group},
        "eventSourceARN": ARN if group is None else f"{ARN}.fifo",
    }


def done(handler: Callable[[Any, Any], object], *records: Mapping[str, Any]) -> list[str]:
    found = LocalFunction(deployed_function=DEPLOYED, handler=handler).invoke(records)
    return [each["messageId"] for each in found]


def failing(*ids: object) -> Callable[[Any, Any], object]:
    return lambda _event, _context: {"batchItemFailures": [{"itemIdentifier": each} for each in ids]}


@pytest.mark.parametrize(
    "response", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, {"ok": 1}, "ok"]
)
def test_where_nothing_is_reported_all_is_done(response: object) -> None:
    assert done(lambda _event, _context: response, record("1"), record("2")) == ["1", "2"]


def test_only_what_isnt_reported_is_done() -> None:
    assert done(failing("2"), record("1"), record("2"), record("3")) == ["1", "3"]


@pytest.mark.parametrize(
    "response",
    [
        {"batchItemFailures": [{"itemIdentifier": ""}]},
        {"batchItemFailures": [{"itemIdentifier": None}]},
        {"batchItemFailures": [{"itemidentifier": "1"}]},
        {"batchItemFailures": [{"itemIdentifier": "1"}, {"itemIdentifier": "other"}]},
        {"batchItemFailures": ["1"]},
        {"batchItemFailures": 1},
        {"unspeakable": object()},
    ],
)
def test_a_response_that_isnt_understood_fails_the_batch(response: object) -> None:
    assert done(lambda _event, _context: response, record("1"), record("2")) == []


def test_an_error_fails_the_batch_and_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def handler(event: Any, _: Any) -> None:
        raise ValueError(event["Records"][0]["body"])

    assert done(handler, record("broken")) == []
    assert "ValueError: broken" in capsys.readouterr().err


def test_of_a_fifo_group_nothing_is_done_from_the_first_failure_on() -> None:
    records = [record(each, group=each[0]) for each in ("a1", "b1", "a2", "b2", "a3")]
    assert done(failing("a2"), *records) == ["a1", "b1", "b2"]
    assert done(failing("a1", "b1"), *records) == []


def test_what_a_handler_does_to_its_event_is_its_own() -> None:
    def handler(event: Any, _: Any) -> None:
        event["Records"].clear()

    assert done(handler, record("1")) == ["1"]


def test_the_context_is_the_functions() -> None:
    seen: list[LambdaContext] = []
    done(lambda _event, context: seen.append(context), record("1"))
    done(lambda _event, context: seen.append(context), record("2"))
    first, second = seen
    assert (first.function_name, first.invoked_function_arn, first.memory_limit_in_mb) == (
        "consumer",
        DEPLOYED.arn,
        "256",
    )
    assert first.aws_request_id != second.aws_request_id
    assert 29_000 < first.get_remaining_time_in_millis() <= 30_000
    over = LambdaContext(**_context() | {"timeout_s": 0})
    assert over.get_remaining_time_in_millis() == 0


@dataclass(frozen=True, slots=True)
class FakeConnection(Connection):
    """Lambda knows one function."""

    found: Mapping[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        return self

    def get_function_configuration(self, *, FunctionName: str) -> Mapping[str, Any]:  # noqa: N803
        return {
            "FunctionName": FunctionName,
            "FunctionArn": DEPLOYED.arn,
            "Handler": "local_trial/app.handle",
            "Timeout": 3,
            "MemorySize": 128,
            "Environment": {"Variables": {"TRIAL_TABLE": "orders"}},
            **self.found,
        }


def connection(**found: Any) -> FakeConnection:
    session = boto3.session.Session("id", "secret", region_name="eu-central-1")
    return FakeConnection(session, "http://127.0.0.1:1", found=found)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a function's code, which reads a variable when it is imported."""
    (tmp_path / "local_trial").mkdir()
    (tmp_path / "local_trial" / "app.py").write_text(
        "import os\nTABLE = os.environ['TRIAL_TABLE']\ndef handle(event, context):\n    return TABLE\nother = 5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("local_trial")]:
        del sys.modules[name]


@pytest.mark.parametrize("handler", ["local_trial.app.handle", None])
def test_a_handler_finds_its_variables_when_it_is_imported(project: Path, handler: str | None) -> None:
    loaded = LocalFunction.load(connection(), "consumer", handler)
    assert loaded.handler({}, LambdaContext(**_context())) == "orders"
    assert (loaded.deployed_function.name, loaded.deployed_function.timeout_s) == ("consumer", 3)
    assert (os.environ["AWS_REGION"], os.environ["AWS_ENDPOINT_URL"]) == ("eu-central-1", "http://127.0.0.1:1")


def _context() -> dict[str, Any]:
    return {"function_name": "f", "invoked_function_arn": "a", "memory_limit_in_mb": "128", "timeout_s": 1}


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("handle", "'handle' is not MODULE.FUNCTION"),
        ("local_trial.app.nothing", "has no function nothing"),
        ("local_trial.app.other", "has no function other"),
    ],
)
def test_a_handler_that_isnt_there_is_named(project: Path, handler: str, words: str) -> None:
    with pytest.raises(BadHandler, match=words):
        LocalFunction.load(connection(), "consumer", handler)


def test_an_image_has_no_handler_of_its_own_and_variables_may_be_hidden(project: Path) -> None:
    with pytest.raises(BadHandler, match="'' is not"):
        LocalFunction.load(connection(Handler=None), "consumer", None)
    with pytest.raises(NotUsable, match="no key"):
        LocalFunction.load(connection(Environment={"Error": {"Message": "no key"}}), "consumer", None)


def test_a_queues_arn_is_in_its_url() -> None:
    queue = EventQueue.open(connection(), "https://sqs.eu-central-1.amazonaws.com/123456789012/orders")
    assert (queue.arn, queue.region) == (ARN, "eu-central-1")


@dataclass
class FakeQueue:
    """Gives its batches one after the other, then ends the session; notes what is deleted."""

    name: str
    batches: list[Sequence[dict[str, Any]] | Exception]
    opened: OpenSession
    deleted: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def receive(self, *, most: int, wait_s: int) -> Sequence[dict[str, Any]]:
        self.asked.append(most)
        if not self.batches:
            self.opened.ended.set()
            return []
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch

    def delete(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.deleted += [each["messageId"] for each in records]


def opened(*statuses: str) -> OpenSession:
    return OpenSession(FakeControl(*statuses), view_of("Ready"))  # type: ignore[arg-type]


def served(handler: Callable[[Any, Any], object], *queues: FakeQueue, most: int = 10) -> int:
    function = LocalFunction(deployed_function=DEPLOYED, handler=handler)
    return invoke_repeatedly(function, queues, queues[0].opened, batch_size=most)  # type: ignore[arg-type]


def test_queues_are_read_in_turn_until_the_session_ends() -> None:
    session, seen = opened(), list[str]()
    first = FakeQueue("one", [[record("1"), record("2")], [], [record("5")]], session)
    second = FakeQueue("two", [[record("3")], [record("4")], []], session)

    def handler(event: Any, _: Any) -> object:
        ids = [each["messageId"] for each in event["Records"]]
        seen.extend(ids)
        return {"batchItemFailures": [{"itemIdentifier": "2"}]} if "2" in ids else None

    assert served(handler, first, second, most=3) == 0
    assert seen == ["1", "2", "3", "4", "5"]
    assert (first.deleted, second.deleted) == (["1", "5"], ["3", "4"])
    assert set(first.asked) == {3}


@dataclass
class FakeLambda:
    """A control function behind HTTP: notes what it is asked."""

    asked: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)

    def answer(self, _target: str, path: str, body: str) -> tuple[str, str]:
        assert path == "/2015-03-31/functions/control/invocations"
        self.asked.put(json.loads(body))
        return "application/json", json.dumps({"result": {"session_id": "s", "status": "Ready", "reason": ""}})


def test_a_process_of_its_own_keeps_the_session_as_long_as_this_one_is_there() -> None:
    fake = FakeLambda()
    with serving(fake) as endpoint:
        session = boto3.session.Session("id", "secret", region_name="eu-central-1")
        with run_heartbeat_process(
            ControlClient(Connection(session, endpoint), "control"), "s", environment=os.environ
        ):
            assert fake.asked.get(timeout=20) == {"op": "heartbeat", "session_id": "s"}


@pytest.mark.parametrize(
    ("error", "waits"), [(CallFailed("Invoke", "Down", "by script"), 3), (RequestRefused("no"), 0)]
)
def test_the_keeper_goes_on_after_a_failed_call_and_ends_with_the_session(error: Exception, waits: int) -> None:
    seconds: list[float] = []

    def ends_within(wait_s: float) -> bool:
        seconds.append(wait_s)
        return len(seconds) == 3

    send_heartbeats(Failing(error), "s", ends_within=ends_within)  # type: ignore[arg-type]
    assert seconds == [HEARTBEAT_INTERVAL_S] * waits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either a program"),
        (["--lambda", "f", "--", "program"], "either a program"),
        (["--handler", "app.handle", "--", "program"], "--handler needs --lambda"),
        (["--lambda", "f", "--queue", "A=one"], "--queue is only for programs"),
    ],
)
def test_either_a_program_or_a_handler_is_run(arguments: list[str], words: str) -> None:
    run = CliRunner().invoke(app, ["split", "run", *arguments])
    assert (run.exit_code, words in " ".join(run.output.replace("│", " ").split())) == (2, True)


def test_ctrl_c_ends_it_and_what_was_at_it_isnt_deleted() -> None:
    def handler(_event: Any, _context: Any) -> None:
        raise KeyboardInterrupt

    queue = FakeQueue("one", [[record("1")]], opened())
    assert served(handler, queue) == 128 + 2
    assert queue.deleted == []


def test_a_queue_that_is_gone_is_asked_of_the_session() -> None:
    ending = FakeQueue("one", [QueueGone("one")], opened("Closing"))
    assert served(failing(), ending) == 0
    assert ending.opened.reason == "because"
    with pytest.raises(QueueGone):
        served(failing(), FakeQueue("one", [QueueGone("one")], opened("Ready")))


def test_a_call_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    queue = FakeQueue("one", [CallFailed("ReceiveMessage", "Down", "by script"), [record("1")]], session)
    monkeypatch.setattr(session.ended, "wait", lambda _: False)
    assert served(lambda _event, _context: None, queue) == 0
    assert queue.deleted == ["1"]
