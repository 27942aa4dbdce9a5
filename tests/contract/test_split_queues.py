"""SQS as splitting asks for it, on moto: each promise of the ports `TargetQueues` and `ControlledQueues`."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.sqs.models import sqs_backends
from msgspec.structs import replace

from sluice.aws.splitting.queues import SplitQueues
from sluice.errors import CallFailed, QueueGone
from sluice.message import Message, Outgoing, Value
from sluice.splitting.consumers.temporary_queues import merge_tags, select_attributes
from sluice.splitting.routing.router import build_main_message, build_session_copy

ATTRIBUTES = {
    "text": Value("String", "ä\U0001f600"),
    "number": Value("Number.int", "007"),
    "bytes": Value("Binary", b"\x00\xff"),
}


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[SplitQueues]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("sqs", region_name="eu-central-1")
        yield SplitQueues(client, client.create_queue(QueueName="sibling")["QueueUrl"])


def entries(*bodies: str) -> list[dict[str, object]]:
    return [Outgoing(body=body).entry(str(place)) for place, body in enumerate(bodies)]


def bodies(queues: SplitQueues, name: str) -> list[str]:
    return [message.body for message in queues.receive_batch(name)]


def test_a_batch_is_sent_to_a_queue_by_name(queues: SplitQueues) -> None:
    assert queues.send_batch("sibling", entries("one", "two")) == {}
    assert sorted(bodies(queues, "sibling")) == ["one", "two"]


def test_a_forwarded_message_keeps_body_attributes_and_types(queues: SplitQueues) -> None:
    """The trace header is kept too, which moto forgets in batches: `test_copies` looks at the request."""
    body = '{"a":\t1}\r\n \x7f ä \U0001f600'
    message = Message(message_id="m", body=body, attributes=ATTRIBUTES)
    queues.send_batch("sibling", [build_main_message(message, fifo=False).entry("0")])
    [received] = queues.receive_batch("sibling")
    assert (received.body, received.attributes) == (body, ATTRIBUTES)


def test_a_fifo_copy_keeps_its_group_and_its_retry_is_suppressed(queues: SplitQueues) -> None:
    queues.create("session.fifo", {"FifoQueue": "true"}, {})
    message = Message(message_id="m", body="b", attributes=ATTRIBUTES, system={"MessageGroupId": "g"})
    for _ in range(2):
        queues.send_batch("session.fifo", [build_session_copy(message, key="k", fifo=True).entry("0")])
    [received] = queues.receive_batch("session.fifo")
    assert (received.group_id, received.deduplication_id) == ("g", "m")
    assert received.attributes == ATTRIBUTES | {"sluice-session": Value("String.sluice", "k")}


def test_a_fifo_queue_keeps_the_order_of_a_batch(queues: SplitQueues) -> None:
    queues.create("session.fifo", {"FifoQueue": "true"}, {})
    sent = [
        Outgoing(body=str(n), group_id="g", deduplication_id=str(n)).entry(str(place))
        for place, n in enumerate(range(9, -1, -1))
    ]
    queues.send_batch("session.fifo", sent)
    assert bodies(queues, "session.fifo") == [str(n) for n in range(9, -1, -1)]


@pytest.mark.parametrize("name", ["sibling-that-was", "never-there.fifo"])
def test_each_use_of_a_queue_that_isnt_there_says_so_by_name(queues: SplitQueues, name: str) -> None:
    message = Message(message_id="m", body="b", receipt_handle="r")
    for use in (
        lambda: queues.send_batch(name, entries("one")),
        lambda: queues.describe(name),
        lambda: queues.receive_batch(name),
        lambda: queues.count(name),
        lambda: queues.delete_batch(name, [message]),
    ):
        with pytest.raises(QueueGone) as caught:
            use()
        assert caught.value.queue == name


def test_what_is_wrong_with_a_whole_batch_is_told_with_awss_code(queues: SplitQueues) -> None:
    twice = [Outgoing(body="b").entry("same"), Outgoing(body="b").entry("same")]
    with pytest.raises(CallFailed, match="SendMessageBatch") as caught:
        queues.send_batch("sibling", twice)
    assert "Distinct" in caught.value.code


def test_a_queue_is_made_like_its_original(queues: SplitQueues) -> None:
    queues.create("original", {"VisibilityTimeout": "77", "DelaySeconds": "9"}, {"team": "theirs", "kept": "yes"})
    attributes, tags = queues.describe("original")
    queues.create(
        "copy",
        select_attributes(attributes, original_name="original", name="copy", of_session=False),
        merge_tags(tags, configured={"team": "ours"}),
    )
    attributes, tags = queues.describe("copy")
    assert (attributes["VisibilityTimeout"], attributes["DelaySeconds"]) == ("77", "0")
    assert tags == {"team": "ours", "kept": "yes"}


def test_a_queue_without_tags_has_none(queues: SplitQueues) -> None:
    assert queues.describe("sibling")[1] == {}


def test_a_queue_that_is_made_twice_keeps_its_messages(queues: SplitQueues) -> None:
    for _ in range(2):
        queues.create("session", {"VisibilityTimeout": "77"}, {"team": "ours"})
        queues.send_batch("session", entries("one"))
    assert bodies(queues, "session") == ["one", "one"]


def test_a_fifo_original_makes_a_fifo_queue(queues: SplitQueues) -> None:
    queues.create("original.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}, {})
    attributes, _ = queues.describe("original.fifo")
    queues.create(
        "copy.fifo",
        select_attributes(attributes, original_name="original.fifo", name="copy.fifo", of_session=False),
        {},
    )
    made, _ = queues.describe("copy.fifo")
    assert (made["FifoQueue"], made["ContentBasedDeduplication"]) == ("true", "true")


def test_a_queue_is_deleted_once_and_again(queues: SplitQueues) -> None:
    queues.create("session", {}, {})
    for _ in range(2):
        queues.delete("session")
    assert list(queues.names("session")) == []


def test_what_was_received_is_deleted_and_nothing_else(queues: SplitQueues) -> None:
    queues.send_batch("sibling", entries(*"abc"))
    received = queues.receive_batch("sibling")
    queues.delete_batch("sibling", [message for message in received if message.body != "b"])
    assert queues.count("sibling") == 1


def test_a_message_that_cant_be_deleted_is_told(queues: SplitQueues) -> None:
    queues.send_batch("sibling", entries("a"))
    [received] = queues.receive_batch("sibling")
    with pytest.raises(CallFailed, match="DeleteMessageBatch"):
        queues.delete_batch("sibling", [replace(received, receipt_handle="nobody's")])


def test_visible_in_flight_and_delayed_messages_count(queues: SplitQueues) -> None:
    queues.send_batch("sibling", entries("in flight"))
    queues.receive_batch("sibling")
    queues.send_batch("sibling", [{"Id": "0", "MessageBody": "delayed", "DelaySeconds": 60}])
    queues.send_batch("sibling", entries("visible"))
    assert queues.count("sibling") == 3


def test_at_most_ten_are_received_at_once(queues: SplitQueues) -> None:
    for _ in range(2):
        queues.send_batch("sibling", entries(*"abcdefghij"))
    assert [len(queues.receive_batch("sibling")) for _ in range(3)] == [10, 10, 0]


def test_names_are_those_with_the_prefix_on_all_pages(queues: SplitQueues) -> None:
    behind = sqs_backends[DEFAULT_ACCOUNT_ID]["eu-central-1"]  # a thousand requests take a hundred times as long
    for number in range(1_003):
        behind.create_queue(f"sluice-tmp-{number}", {})
    assert len(set(queues.names("sluice-tmp-"))) == 1_003
    assert list(queues.names("sluice-tmp-1002")) == ["sluice-tmp-1002"]
    assert list(queues.names("nobody's-")) == []
