"""What doesn't arrive as SQS sent it is not staged, and comes again."""

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_spark.errors import QueueBusy
from sluice_spark.log.planning import Position, divide_into_tasks
from sluice_spark.log.staging import StagedLog, read_slices
from sluice_spark.log.store import FileStore
from sluice_spark.options import Options, parse_options
from sluice_spark.source.receiver import Receiver
from sluice_spark.sqs.client import compute_attributes_digest, is_intact

from tests.spark.clients import client_of
from tests.sqs.queues import Queue

ATTRIBUTES: dict[str, Any] = {
    "number": {"DataType": "Number", "StringValue": "7"},
    "Upper-case": {"DataType": "String.custom", "StringValue": "ünïcode"},
    "binary": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


def test_the_digest_of_attributes_is_sqs_s_own() -> None:
    moto = pytest.importorskip("moto", reason="it digests by itself")
    with moto.mock_aws():
        sqs: Any = boto3.client("sqs", region_name="eu-west-1")
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="é", MessageAttributes=ATTRIBUTES)
        [message] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    sent: dict[str, Any] = {**message, "MessageAttributes": as_json(message["MessageAttributes"])}
    assert compute_attributes_digest(sent["MessageAttributes"]) == message["MD5OfMessageAttributes"]
    assert is_intact(sent)
    assert not is_intact({**sent, "Body": "e"})
    for name, value in (("number", {"DataType": "Number", "StringValue": "8"}), ("more", ATTRIBUTES["number"])):
        assert not is_intact({**sent, "MessageAttributes": {**sent["MessageAttributes"], name: value}})


def as_json(attributes: dict[str, Any]) -> dict[str, Any]:
    """As SQS's JSON carries them."""
    return {
        name: {**value, "BinaryValue": base64.b64encode(value["BinaryValue"]).decode()}
        if "BinaryValue" in value
        else value
        for name, value in attributes.items()
    }


@given(st.text())
def test_what_has_no_digests_is_intact(body: str) -> None:
    assert is_intact({"Body": body})
    assert is_intact({})


def received(sqs: Any, folder: Path, queue: str, until: Callable[[], bool] = lambda: False) -> list[str]:
    """The bodies that a bounded run stages."""
    staged = StagedLog(FileStore(folder))
    staged.take_over(staged.find_oldest_position())
    options = Options(queue_urls=(sqs.queue_url(queue),), connections=2, wait_s=1)
    receiver = Receiver(staged, lambda: client_of(sqs, connections=4, check_md5=True), options, until_empty=True)
    receiver.start(staged.log.end)
    while receiver.is_running and not until():
        receiver.join(0.05)
    receiver.stop()
    receiver.join(30)
    receiver.check()
    view = staged.read_log()
    parts = [part for task in divide_into_tasks(view.list_ranges(Position(view.first), view.end)) for part in task]
    return [body for batch in read_slices(FileStore(folder), parts) for body in batch.column("body").to_pylist()]


def damage(queue: Queue, *, mend: bool = False) -> None:
    """The third message's body is changed on its way, or no longer."""
    for message in queue.known.values():
        if "00002" in message.body:
            queue._fix(message)
            changed = ("00002", "0000X")
            message.fixed = message.fixed.replace(*(reversed(changed) if mend else changed))


def test_a_damaged_message_stays_in_the_queue_and_comes_again(tmp_path: Path, sqs: Any) -> None:
    sqs.queues["q"].fill((f"{number:05d}" for number in range(5)), time.time())
    sqs.queues["q"].visibility_s = 2
    damage(sqs.queues["q"])
    deleted = "DeleteMessageBatch"  # the first tries whether we may
    assert sorted(received(sqs, tmp_path, "q", lambda: sqs.calls[deleted] > 1)) == ["00000", "00001", "00003", "00004"]
    damage(sqs.queues["q"], mend=True)
    time.sleep(2.1)  # until it is visible again, in the real server's time
    assert sorted(received(sqs, tmp_path, "q")) == [f"{number:05d}" for number in range(5)]


def test_of_a_fifo_queue_nothing_goes_past_it(tmp_path: Path, sqs: Any) -> None:
    queue = sqs.queues["q.fifo"] = Queue("q.fifo")
    queue.fill((f"{number:05d}" for number in range(5)), time.time())
    damage(queue)
    assert received(sqs, tmp_path, "q.fifo", lambda: sqs.calls["ReceiveMessage"] > 2) == []
    assert len(queue.known) == 5


def test_an_answer_with_nothing_else_is_trouble_that_may_pass(sqs: Any) -> None:
    sqs.queues["q"].fill(["00002"], time.time())
    damage(sqs.queues["q"])

    async def receive() -> None:
        async with client_of(sqs, connections=1, check_md5=True) as client:
            await client.receive(sqs.queue_url("q"), wait_s=0)

    with pytest.raises(QueueBusy, match="Md5Mismatch"):
        asyncio.run(receive())


def test_the_option() -> None:
    given = {"queueUrl": "http://h/1/q", "stagingLocation": "/x"}
    assert parse_options({**given, "checkMd5": "true"}).check_md5
    assert not parse_options(given).check_md5
