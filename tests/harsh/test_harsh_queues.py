"""A harsh cloud's queues: just made, just deleted."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.conftest import eventually, made
from tests.harsh.stacks import Template, deploy, ended, reasons


def test_a_new_queue_is_not_there_at_first(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="new")["QueueUrl"]
    for call in (
        lambda: sqs.send_message(QueueUrl=url, MessageBody="body"),
        lambda: sqs.receive_message(QueueUrl=url),
        lambda: sqs.get_queue_attributes(QueueUrl=url),
        lambda: sqs.get_queue_url(QueueName="new"),
    ):
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            call()
    assert sqs.create_queue(QueueName="new")["QueueUrl"] == url
    eventually(lambda: sqs.send_message(QueueUrl=url, MessageBody="body"), unless=sqs.exceptions.QueueDoesNotExist)


def test_a_new_queue_that_is_excepted_is_there_at_once(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="excepted-0")["QueueUrl"]
    assert sqs.send_message(QueueUrl=url, MessageBody="body")["MessageId"]


def test_the_name_of_a_deleted_queue_is_taken_for_a_while(sqs: Any) -> None:
    sqs.delete_queue(QueueUrl=made(sqs, "deleted"))
    with pytest.raises(sqs.exceptions.QueueDeletedRecently):
        made(sqs, "deleted")
    eventually(lambda: made(sqs, "deleted"), unless=sqs.exceptions.QueueDeletedRecently)


def test_a_deleted_queue_takes_messages_that_are_lost(sqs: Any) -> None:
    queue = made(sqs, "lost")
    sqs.delete_queue(QueueUrl=queue)
    assert sqs.send_message(QueueUrl=queue, MessageBody="body")["MessageId"]
    entries = [{"Id": "0", "MessageBody": "body"}]
    assert [each["Id"] for each in sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]] == ["0"]
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.receive_message(QueueUrl=queue)


def test_a_message_is_deleted_by_an_earlier_handle_without_an_error(sqs: Any) -> None:
    """What ministack refuses and SQS takes."""
    url = made(sqs, "handles")
    sqs.send_message(QueueUrl=url, MessageBody="body")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    handle = message["ReceiptHandle"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    entries = [{"Id": "gone", "ReceiptHandle": handle}, {"Id": "wrong", "ReceiptHandle": "no handle"}]
    done = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in done["Successful"]] == ["gone"]
    assert [(each["Id"], each["Code"]) for each in done["Failed"]] == [("wrong", "ReceiptHandleIsInvalid")]
    with pytest.raises(ClientError, match="ReceiptHandleIsInvalid"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="no handle")


def test_a_stack_does_not_get_a_deleted_queues_name_at_once_either(account: Connection) -> None:
    named = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "of-a-stack"}}
    template = Template(resources={"Named": named, "Other": {"Type": "AWS::SQS::Queue"}})
    assert deploy(account, "first", template) == "CREATE_COMPLETE"
    account.client("cloudformation").delete_stack(StackName="first")
    eventually(lambda: ended(account, "first"))
    assert deploy(account, "second", template) == "ROLLBACK_COMPLETE"
    assert any("QueueDeletedRecently" in reason for reason in reasons(account, "second"))
    eventually(lambda: deploy(account, f"later-{time.monotonic_ns()}", template) == "CREATE_COMPLETE")
