"""A queue read as Lambda reads it, and a function's log, on moto."""

import time
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from sluice.aws.connections import Connection
from sluice.cli.splitting.handlers import EventQueue
from sluice.errors import QueueGone
from sluice.message import Message, Value
from sluice.operator.logs import FunctionLogs, LogLine

REGION = "eu-central-1"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield Connection(boto3.session.Session(region_name=REGION))


def test_what_is_received_is_a_record_and_what_is_deleted_is_gone(connection: Connection) -> None:
    sqs = connection.client("sqs")
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "0"}
    url = sqs.create_queue(QueueName="orders.fifo", Attributes=attributes)["QueueUrl"]
    for body in ("one", "two"):
        sqs.send_message(
            QueueUrl=url,
            MessageBody=body,
            MessageGroupId="g",
            MessageDeduplicationId=body,
            MessageAttributes={"raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
        )
    queue = EventQueue.open(connection, url)
    assert queue.arn == sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    first, second = queue.receive(most=10, wait_s=0)
    assert (first["body"], first["attributes"]["MessageGroupId"], first["eventSourceARN"]) == ("one", "g", queue.arn)
    # As the functions read it, which get their records of Lambda.
    assert Message.from_lambda(first).attributes == {"raw": Value("Binary", b"\x00\xff")}
    assert len(first["md5OfBody"]) == len(first["md5OfMessageAttributes"]) == 32
    queue.delete([first])
    assert [record["messageId"] for record in queue.receive(most=1, wait_s=0)] == [second["messageId"]]
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(QueueGone):
        queue.receive(most=1, wait_s=0)


def test_lines_with_a_word_are_read_once_in_order_of_time(connection: Connection) -> None:
    client = connection.client("logs")
    client.create_log_group(logGroupName="group")
    # CloudWatch Logs takes nothing that is older than two weeks.
    now_ms = time.time_ns() // 1_000_000
    said = {"a": [(1, "Word 1"), (3, "Word 3")], "b": [(0, "Word 0"), (2, "other"), (4, "Word 4")]}
    for stream, lines in said.items():
        client.create_log_stream(logGroupName="group", logStreamName=stream)
        events = [{"timestamp": now_ms + at, "message": text} for at, text in lines]
        client.put_log_events(logGroupName="group", logStreamName=stream, logEvents=events)
    logs = FunctionLogs(client, "group", now_ms + 1)
    found = list(logs.read_new_lines("Word", now_ms=now_ms + 5))
    assert found == [LogLine(now_ms + at, f"Word {at}") for at in (1, 3, 4)]
    assert list(logs.read_new_lines("Word", now_ms=now_ms + 5)) == []
