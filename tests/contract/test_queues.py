"""The SQS adapter keeps its port's promises, on moto."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.broker import ANSWER_QUEUE_ATTRIBUTES
from sluice.rendezvous.mailbox import ATTRIBUTES


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsQueues]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("sqs", region_name="eu-central-1")
        yield SqsQueues(client, client.create_queue(QueueName="sibling")["QueueUrl"])


def gone(queues: SqsQueues) -> str:
    return queues.sibling_url.replace("sibling", "gone")


def test_a_queue_is_made_once_and_found_again(queues: SqsQueues) -> None:
    assert queues.create("a", ANSWER_QUEUE_ATTRIBUTES) == queues.create("a", ANSWER_QUEUE_ATTRIBUTES)


def test_a_message_arrives_as_it_was_sent(queues: SqsQueues) -> None:
    url = queues.create("a", {})
    queues.send(url, "body", attributes={"ClientID": "c"})
    received = queues.client.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"][0]
    assert received["Body"] == "body"
    assert received["MessageAttributes"]["ClientID"]["StringValue"] == "c"


def test_a_delayed_message_does_not_arrive_at_once(queues: SqsQueues) -> None:
    url = queues.create("a", {})
    queues.send(url, "body", delay_s=5)
    assert queues.receive(url, wait_s=0) is None


def test_a_letter_is_received_once_though_nobody_deletes_it(queues: SqsQueues) -> None:
    url = queues.create("a", ATTRIBUTES)
    queues.send(url, "letter")
    assert [queues.receive(url, wait_s=0), queues.receive(url, wait_s=0)] == ["letter", None]


def test_a_letter_is_kept_for_less_time_than_it_stays_invisible() -> None:
    assert int(ATTRIBUTES["MessageRetentionPeriod"]) < int(ATTRIBUTES["VisibilityTimeout"])


def test_a_queue_that_is_gone_is_named(queues: SqsQueues) -> None:
    with pytest.raises(QueueGone, match="gone"):
        queues.send(gone(queues), "body")
    with pytest.raises(QueueGone, match="gone"):
        queues.receive(gone(queues), wait_s=0)


def test_a_queue_is_deleted_by_name_and_deleting_it_again_is_no_error(queues: SqsQueues) -> None:
    queues.create("a", {})
    assert [queues.delete("a"), queues.delete("a")] == [True, False]


def test_what_aws_refuses_is_told_with_its_code(queues: SqsQueues) -> None:
    with pytest.raises(CallFailed, match="SendMessage: "):
        queues.send(queues.sibling_url, "x" * (1024 * 1024 + 1))


def test_one_message_of_a_request_that_keeps_its_visibility_is_a_failed_call(queues: SqsQueues) -> None:
    """SQS answers such a request with success, and names the message."""
    queues.send(queues.sibling_url, "body")
    handle = queues.client.receive_message(QueueUrl=queues.sibling_url)["Messages"][0]["ReceiptHandle"]
    arn = f"arn:aws:sqs:eu-central-1:{queues.sibling_url.split('/')[-2]}:sibling"
    received = ReceivedQueues(queues.client, queues.sibling_url)
    received.change_visibility(arn, {handle: 5})
    with pytest.raises(CallFailed, match="ReceiptHandleIsInvalid"):
        received.change_visibility(arn, {handle: 5, "unknown": 5})
