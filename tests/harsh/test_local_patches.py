"""What of ministack is patched and can be tried without its server.

Its import raises the process's limit of recursion: suites that try what is too deep run in others.
"""

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ministack.app
import pytest
from ministack.core import iam_actions
from ministack.core.lambda_runtime import Worker
from ministack.services.cloudformation import provisioners

from sluice.local.patches import cloud, iam, metrics
from tests.harsh.two_clouds import TwoClouds, two_clouds

FIFO = {"name": "queue.fifo", "FifoQueue": "true"}
INVALID = {"Error": "ValidationException"}
Table = Callable[..., dict[str, Any]]


class Queue:
    """A queue of ministack's in this process, by its API; time passes when told."""

    def __init__(self, clouds: TwoClouds, name: str = "queue", **attributes: str) -> None:
        self.clouds = clouds
        self.url = clouds.embedded("create_queue", QueueName=name, Attributes=attributes)["QueueUrl"]

    def __call__(self, operation: str, **parameters: Any) -> dict[str, Any]:
        return self.clouds.embedded(operation, QueueUrl=self.url, **parameters)

    def received(self, **parameters: Any) -> list[Any]:
        """What one receive gets, ten at most."""
        found: list[Any] = self("receive_message", MaxNumberOfMessages=10, **parameters).get("Messages", [])
        return found

    def sent(self, *bodies: str, group: str) -> None:
        """Send to a group."""
        for body in bodies:
            self("send_message", MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body)


@pytest.fixture
def clouds(patched: None) -> Iterator[TwoClouds]:
    with two_clouds("sqs") as both:
        yield both


@pytest.fixture
def table(patched: None) -> Iterator[Table]:
    """A table of ministack's: makes an update of its one item."""
    with two_clouds("dynamodb") as both:
        both.make_table("table")

        def call(operation: str = "update_item", **parameters: Any) -> dict[str, Any]:
            key = {"pk": {"S": "p"}, "sk": {"S": "1"}}
            return both.embedded(operation, TableName="table", Key=key, **parameters)

        yield call


def test_a_state_that_changes_while_it_is_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    def save(services: dict[str, Callable[[], Any]]) -> None:
        happened.append({name: get_state() for name, get_state in services.items()})

    faults = [RuntimeError("dictionary changed size during iteration")] * 3

    def queues() -> str:
        if faults:
            raise faults.pop()
        return "queues"

    monkeypatch.setattr(ministack.app, "save_all", save)
    cloud.save_changing_state(lambda: happened.append("end"))
    ministack.app.save_all({"sqs": queues, "iam": lambda: "users"})
    assert happened == [{"sqs": "queues", "iam": "users"}, "end"]


@pytest.mark.parametrize(
    ("operation", "asked", "resource"),
    [
        ("GetParameters", {"Names": ["/site/links/0", "/site/links/1"]}, "parameter/site/links/0"),
        ("GetParameters", {"Names": ["plain"]}, "parameter/plain"),
        ("GetParameter", {"Name": "/site/links/0"}, "parameter/site/links/0"),
    ],
)
def test_parameters_are_asked_for_by_their_names(
    monkeypatch: pytest.MonkeyPatch, operation: str, asked: dict[str, Any], resource: str
) -> None:
    monkeypatch.setattr(iam_actions, "extract_resource_arn", iam_actions.extract_resource_arn)
    monkeypatch.setattr(iam_actions, "request_tag_context", iam_actions.request_tag_context)
    iam.check_named_resources()
    target, body = {"x-amz-target": f"AmazonSSM.{operation}"}, json.dumps(asked).encode()
    found = iam_actions.extract_resource_arn("ssm", "POST", "/", target, body, {}, "000000000000", "us-east-1")
    assert found.split(":", 5)[5] == resource


def test_a_role_is_simulated_by_who_may_simulate_that_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iam_actions, "extract_resource_arn", iam_actions.extract_resource_arn)
    monkeypatch.setattr(iam_actions, "request_tag_context", iam_actions.request_tag_context)
    iam.check_named_resources()
    role, place = "arn:aws:iam::000000000000:role/orders", ("us-east-1", "000000000000")
    asked = {"PolicySourceArn": [role]}
    assert iam_actions.extract_resource_arn("iam", "POST", "/", {}, b"", asked, *place) == role


@pytest.mark.parametrize(("parameters", "alias"), [({}, ""), ({"Qualifier": ["reader"]}, ":reader")])
def test_an_alias_is_invoked_by_who_may_invoke_it(
    monkeypatch: pytest.MonkeyPatch, parameters: dict[str, list[str]], alias: str
) -> None:
    monkeypatch.setattr(iam_actions, "extract_resource_arn", iam_actions.extract_resource_arn)
    monkeypatch.setattr(iam_actions, "request_tag_context", iam_actions.request_tag_context)
    iam.check_named_resources()
    path, place = "/2015-03-31/functions/name/invocations", ("us-east-1", "000000000000")
    found = iam_actions.extract_resource_arn("lambda", "POST", path, {}, b"{}", parameters, *place)
    assert found == f"arn:aws:lambda:us-east-1:000000000000:function:name{alias}"


def test_a_log_group_is_named_by_its_stack_and_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = provisioners._RESOURCE_HANDLERS
    monkeypatch.setitem(handlers, "AWS::Logs::LogGroup", dict(handlers["AWS::Logs::LogGroup"]))
    cloud.name_log_groups_like_other_resources()
    handler, days = handlers["AWS::Logs::LogGroup"], {"RetentionInDays": 7}
    name = handler["create"]("SplitterLogs1", {}, "dev-SluiceSplitting")[0]
    assert re.fullmatch(r"dev-SluiceSplitting-SplitterLogs1-\w+", name)
    assert handler["update"](name, {}, days, "dev-SluiceSplitting", logical_id="SplitterLogs1")[0] == name


def test_an_entry_of_a_batch_keeps_its_trace(clouds: TwoClouds) -> None:
    queue = Queue(clouds)
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    queue("send_message_batch", Entries=[{"Id": "1", "MessageBody": "one", "MessageSystemAttributes": trace}])
    [message] = queue.received(MessageSystemAttributeNames=["AWSTraceHeader"])
    assert message["Attributes"] == {"AWSTraceHeader": "Root=1"}


def test_a_queue_is_not_made_again_with_what_it_was_not_given(clouds: TwoClouds) -> None:
    dead, queue = Queue(clouds, "dead"), Queue(clouds)
    arn = dead("get_queue_attributes", AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})}
    again = clouds.embedded("create_queue", QueueName="queue", Attributes=redrive)
    same = clouds.embedded("create_queue", QueueName="queue", Attributes={"SqsManagedSseEnabled": "true"})
    unsaid = clouds.embedded("create_queue", QueueName="queue.fifo", Attributes={})
    assert again == {"Error": "QueueAlreadyExists"}
    assert same == {"QueueUrl": queue.url}
    assert unsaid == {"Error": "InvalidParameterValue"}


@pytest.mark.parametrize(
    "wrong",
    [{"MessageDeduplicationId": "1"}, {"DelaySeconds": 901}, {"DelaySeconds": -1}, {"MessageGroupId": "with space"}],
    ids=str,
)
def test_a_message_that_sqs_refuses_is_refused(clouds: TwoClouds, wrong: dict[str, Any]) -> None:
    queue = Queue(clouds)
    alone = queue("send_message", MessageBody="one", **wrong)
    beside = queue("send_message_batch", Entries=[{"Id": "1", "MessageBody": "one", **wrong}])
    assert alone == {"Error": "InvalidParameterValue"}
    assert [failed["Code"] for failed in beside["Failed"]] == ["InvalidParameterValue"]


@pytest.mark.parametrize("wrong", [{"VisibilityTimeout": 43_201}, {"WaitTimeSeconds": 21}], ids=str)
def test_a_receive_that_sqs_refuses_is_refused(clouds: TwoClouds, wrong: dict[str, int]) -> None:
    assert Queue(clouds)("receive_message", **wrong) == {"Error": "InvalidParameterValue"}


def test_a_message_that_is_gone_can_be_deleted_again_but_by_no_other_queue_s_handle(clouds: TwoClouds) -> None:
    queue, other = Queue(clouds), Queue(clouds, "other")
    queue("send_message", MessageBody="one")
    [message] = queue.received()
    handle = message["ReceiptHandle"]
    assert other("delete_message", ReceiptHandle=handle) == {"Error": "ReceiptHandleIsInvalid"}
    assert queue("delete_message", ReceiptHandle=handle) == {}
    entries = [{"Id": "gone", "ReceiptHandle": handle}, {"Id": "none", "ReceiptHandle": "none"}]
    again = queue("delete_message_batch", Entries=entries)
    assert again["Successful"] == [{"Id": "gone"}]
    assert [(each["Id"], each["Code"]) for each in again["Failed"]] == [("none", "ReceiptHandleIsInvalid")]


def test_a_fifo_queues_handle_expires(clouds: TwoClouds) -> None:
    queue = Queue(clouds, **FIFO)
    queue.sent("one", group="a")
    [message] = queue.received(VisibilityTimeout=5)
    clouds.wait(5)
    assert queue("delete_message", ReceiptHandle=message["ReceiptHandle"]) == {"Error": "InvalidParameterValue"}
    assert len(queue.received()) == 1


def test_what_is_visible_again_is_not_hidden_by_its_old_handle(clouds: TwoClouds) -> None:
    queue = Queue(clouds)
    queue("send_message", MessageBody="one")
    [message] = queue.received(VisibilityTimeout=5)
    change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 30}
    clouds.wait(5)
    assert queue("change_message_visibility", **change) == {}
    assert len(queue.received()) == 1
    assert queue("change_message_visibility", **change) == {"Error": "InvalidParameterValue"}


def test_a_message_is_hidden_for_twelve_hours_in_all(clouds: TwoClouds) -> None:
    queue = Queue(clouds)
    queue("send_message", MessageBody="one")
    [message] = queue.received()
    clouds.wait(1)
    change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 43_200}
    assert queue("change_message_visibility", **change) == {"Error": "InvalidParameterValue"}
    assert queue("change_message_visibility", **{**change, "VisibilityTimeout": 43_199}) == {}


def test_a_fifo_queue_gives_a_group_before_the_next(clouds: TwoClouds) -> None:
    queue = Queue(clouds, **FIFO)
    queue.sent("a1", group="a")
    queue.sent("b1", group="b")
    queue.sent("a2", group="a")
    assert [message["Body"] for message in queue.received()] == ["a1", "a2", "b1"]


def test_a_dead_letter_stays_behind_what_is_in_flight_before_it(clouds: TwoClouds) -> None:
    dead = Queue(clouds, "dead.fifo", FifoQueue="true")
    arn = dead("get_queue_attributes", AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    queue = Queue(clouds, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}), **FIFO)
    queue.sent("a1", "a2", group="a")
    first, second = queue.received()
    queue("change_message_visibility", ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    assert queue.received() == []
    assert dead.received() == []
    queue("delete_message", ReceiptHandle=first["ReceiptHandle"])
    assert queue.received() == []
    assert [message["Body"] for message in dead.received()] == ["a2"]


def test_a_placeholder_that_begins_another_is_unused(table: Table) -> None:
    values = {":value": {"N": "1"}, ":v": {"N": "1"}}
    assert table(UpdateExpression="SET a = :value", ExpressionAttributeValues=values) == INVALID


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("attribute_not_exists(pk) OR a < :v", [{"BOOL": True}]),
        ("attribute_not_exists(pk) OR begins_with(a, :v)", [{"N": "1"}]),
        ("attribute_not_exists(pk) OR a BETWEEN :v AND :w", [{"N": "1"}, {"S": "2"}]),
        ("attribute_not_exists(pk) OR a BETWEEN :v AND :w", [{"N": "2"}, {"N": "1"}]),
    ],
)
def test_a_condition_is_refused_though_no_item_comes_to_it(table: Table, expression: str, values: list[Any]) -> None:
    given = dict(zip((":v", ":w"), values, strict=False))
    assert table("delete_item", ConditionExpression=expression, ExpressionAttributeValues=given) == INVALID


@pytest.mark.parametrize("expression", ["SET a = :v, a = :v", "SET a = :v REMOVE a", "ADD a :v SET b = :v, a = :v"])
def test_paths_that_overlap_are_refused(table: Table, expression: str) -> None:
    assert table(UpdateExpression=expression, ExpressionAttributeValues={":v": {"N": "1"}}) == INVALID


def test_a_number_begins_with_no_text(table: Table) -> None:
    table(UpdateExpression="SET a = :v", ExpressionAttributeValues={":v": {"N": "12"}})
    asked = {"ConditionExpression": "begins_with(a, :v)", "ExpressionAttributeValues": {":v": {"S": "1"}}}
    assert table("delete_item", **asked) == {"Error": "ConditionalCheckFailedException"}


def test_nothing_is_added_to_a_text(table: Table) -> None:
    table(UpdateExpression="SET a = :v", ExpressionAttributeValues={":v": {"S": "12"}})
    added = table(UpdateExpression="SET b = a + :v", ExpressionAttributeValues={":v": {"N": "1"}})
    assert added == INVALID


def test_what_a_function_logged_is_had_however_late_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "_drain_stderr_bounded", Worker._drain_stderr_bounded)  # put back afterwards
    metrics.keep_logs_whole()
    environment = Worker.__new__(Worker)
    environment.func_name, environment._stderr_queue = "busy", queue.Queue()
    printing = [sys.executable, "-c", "import sys; print('late', file=sys.stderr)"]
    with subprocess.Popen(printing, stderr=subprocess.PIPE, text=True) as environment._proc:
        environment._proc.wait()
        reading = threading.Timer(0.3, environment._read_stderr)
        reading.start()
        assert environment._drain_stderr_bounded() == "late"
        reading.join()
        assert environment._drain_stderr_bounded() == ""
