"""A harsh cloud's deliveries: standard queues deliver twice, in any order, and short polls miss what waits."""

from typing import Any

from tests.harsh.conftest import eventually, made


def receive(sqs: Any, url: str) -> list[dict[str, Any]]:
    """A long poll."""
    messages: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["All"]
    ).get("Messages", [])
    return messages


def send(sqs: Any, url: str, **more: str) -> list[str]:
    """Ten messages, in one batch; their bodies in order."""
    bodies = [str(number) for number in range(10)]
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": body, "MessageBody": body} | more for body in bodies])
    return bodies


def test_a_message_comes_again_after_it_was_deleted(sqs: Any) -> None:
    url = made(sqs, "duplicates")
    sqs.send_message(QueueUrl=url, MessageBody="body")
    found = []
    for _ in range(2):
        [message] = eventually(lambda: receive(sqs, url))
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        found.append((message["MessageId"], message["Body"], message["Attributes"]["ApproximateReceiveCount"]))
    assert found == [(found[0][0], "body", "1")] * 2


def test_a_standard_queue_keeps_no_order(sqs: Any) -> None:
    url = made(sqs, "order")
    sent = send(sqs, url)
    received = [message["Body"] for message in receive(sqs, url)]
    assert sorted(received) == sent
    assert received != sent


def test_a_fifo_queue_keeps_its_order_and_delivers_once(sqs: Any) -> None:
    url = made(sqs, "order.fifo", FifoQueue="true", ContentBasedDeduplication="true")
    sent = send(sqs, url, MessageGroupId="group")
    received = receive(sqs, url)
    assert [message["Body"] for message in received] == sent
    for message in received:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert [value for name, value in counts.items() if name.startswith("ApproximateNumber")] == ["0", "0", "0"]


def test_a_short_poll_misses_what_a_long_one_finds(sqs: Any) -> None:
    url = made(sqs, "polls")
    sqs.send_message(QueueUrl=url, MessageBody="body")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    assert [message["Body"] for message in receive(sqs, url)] == ["body"]


def test_a_queue_whose_default_is_to_wait_is_polled_long(sqs: Any) -> None:
    url = made(sqs, "waits", ReceiveMessageWaitTimeSeconds="1")
    sqs.send_message(QueueUrl=url, MessageBody="body")
    assert [message["Body"] for message in sqs.receive_message(QueueUrl=url)["Messages"]] == ["body"]
