"""Federation's SQS adapters on moto: the site's queues, bound queues, dead letters and peers."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError
from moto import mock_aws
from msgspec.structs import replace

from sluice.aws.dead_letters import MAX_REASON, PACKED, REASON, SOURCE, DeadLetters
from sluice.aws.federation.peers import PeerQueues, _translate_errors
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.aws.queues import send_batch
from sluice.errors import CallFailed, PeerRefused, PeerUnreachable, QueueGone
from sluice.federation.links.links import Endpoint, Link
from sluice.message import DeadLetter, Message, Outgoing, Value

REGION = "eu-central-1"
ENDPOINT = Endpoint(region=REGION, account="123456789012", control_queue_url="")
LINK = Link(name="link", peer="PEER", endpoints=(ENDPOINT,))


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.client("sqs", region_name=REGION)


@pytest.fixture
def dead_url(sqs: Any) -> str:
    return str(sqs.create_queue(QueueName="dead")["QueueUrl"])


def site_queues(sqs: Any, dead_url: str) -> SqsSiteQueues:
    return SqsSiteQueues(sqs, dead_url, f"arn:aws:sqs:{REGION}:123456789012:")


def received(sqs: Any, url: str) -> list[Message]:
    found = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )
    return [Message.from_api(each) for each in found.get("Messages", [])]


def message(body: str = "body", attributes: int = 0) -> Message:
    values = [Value("Number", str(n)) if n % 2 else Value("Binary", bytes([n, 255])) for n in range(attributes)]
    return Message(message_id="id", body=body, attributes={f"a{n}": value for n, value in enumerate(values)})


def test_a_bound_queue_is_sent_to_by_its_url_and_one_that_is_gone_says_so(sqs: Any, dead_url: str) -> None:
    assert send_batch(sqs, dead_url, [Outgoing(body="b").entry("0")]) == {}
    assert [each.body for each in received(sqs, dead_url)] == ["b"]
    with pytest.raises(QueueGone):
        send_batch(sqs, dead_url + "-gone", [Outgoing(body="b").entry("0")])


def test_a_sites_queues_are_known_by_name(sqs: Any, dead_url: str) -> None:
    queues = site_queues(sqs, dead_url)
    queues.create("made.fifo", {"FifoQueue": "true"}, {"sluice:site": "A"})
    queues.create("made.fifo", {"FifoQueue": "true"}, {"sluice:site": "A"})
    assert queues.arn("made.fifo") == f"arn:aws:sqs:{REGION}:123456789012:made.fifo"
    entry = Outgoing(body="b", group_id="g", deduplication_id="d").entry("0")
    assert (queues.send_batch("made.fifo", [entry]), queues.count("made.fifo")) == ({}, 1)
    [held] = queues.receive_batch("made.fifo")
    assert (held.group_id, queues.count("made.fifo")) == ("g", 1)  # in flight counts, too
    queues.delete_batch("made.fifo", [held])
    queues.delete("made.fifo")
    queues.delete("made.fifo")
    with pytest.raises(QueueGone):
        queues.count("made.fifo")


def test_a_queue_that_somebody_changed_is_as_it_was(sqs: Any, dead_url: str) -> None:
    queues = site_queues(sqs, dead_url)
    redrive = json.dumps({"deadLetterTargetArn": queues.arn("dead"), "maxReceiveCount": 1_000})
    wanted = {"VisibilityTimeout": "180", "SqsManagedSseEnabled": "true", "RedrivePolicy": redrive}
    queues.create("made", wanted, {})
    assert not queues.configure("made", wanted)
    denying = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": queues.arn("made")}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [denying]})
    changed = {"Policy": policy, "VisibilityTimeout": "0", "RedrivePolicy": ""}
    sqs.set_queue_attributes(QueueUrl=queues.url("made"), Attributes=changed)
    assert queues.configure("made", wanted)
    assert not queues.configure("made", wanted)
    assert "Policy" not in queues.describe("made")[0]
    with pytest.raises(QueueGone):
        queues.configure("gone", wanted)


@pytest.mark.parametrize("attributes", [0, 8, 9, 10])
def test_a_dead_letter_goes_back_as_it_was(sqs: Any, dead_url: str, attributes: int) -> None:
    source = sqs.create_queue(QueueName="source")["QueueUrl"]
    queues, dead = site_queues(sqs, dead_url), DeadLetters(sqs, dead_url)
    died = message(attributes=attributes)
    dead.send(DeadLetter(message=died, reason="r" * 5_000, source=queues.arn("source")))
    dead.send(DeadLetter(message=message("other"), reason="r", source=queues.arn("another-source")))
    letter = next(each for each in received(sqs, dead_url) if each.body == "body")
    assert (letter.attributes[REASON].text, letter.attributes[SOURCE].text) == ("r" * MAX_REASON, queues.arn("source"))
    assert (PACKED in letter.attributes) == (attributes > 8)
    sqs.change_message_visibility(QueueUrl=dead_url, ReceiptHandle=letter.receipt_handle, VisibilityTimeout=0)
    assert [queues.redrive("source", dead_letters_url=dead_url) for _ in range(2)] == [1, 0]
    [back] = received(sqs, source)
    assert (back.body, back.attributes) == (died.body, died.attributes)


def test_many_dead_letters_go_back_a_request_for_ten_and_large_ones_in_their_own(sqs: Any, dead_url: str) -> None:
    source = sqs.create_queue(QueueName="source")["QueueUrl"]
    queues, dead = site_queues(sqs, dead_url), DeadLetters(sqs, dead_url)
    for number in range(20):
        body = str(number) if number % 5 else "x" * 900_000
        dead.send(DeadLetter(message=message(body), reason="r", source=queues.arn("source")))
    calls = Counter[str]()
    sqs.meta.events.register("before-call.sqs", lambda model, **_: calls.update([model.name]))
    assert queues.redrive("source", dead_letters_url=dead_url) == 20
    assert calls["DeleteMessageBatch"] <= calls["SendMessageBatch"] <= 10
    left = sqs.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["All"])["Attributes"]
    back = sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["All"])["Attributes"]
    assert (left["ApproximateNumberOfMessagesNotVisible"], left["ApproximateNumberOfMessages"]) == ("0", "0")
    assert back["ApproximateNumberOfMessages"] == "20"


def test_a_dead_letter_goes_back_to_its_group(sqs: Any, dead_url: str) -> None:
    source = sqs.create_queue(QueueName="source.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    queues, dead = site_queues(sqs, dead_url), DeadLetters(sqs, dead_url)
    died = replace(message(), system={"MessageGroupId": "orders of 7"})
    dead.send(DeadLetter(message=died, reason="r", source=queues.arn("source.fifo")))
    assert queues.redrive("source.fifo", dead_letters_url=dead_url) == 1
    assert [each.group_id for each in received(sqs, source)] == ["orders of 7"]


@pytest.mark.parametrize("said", ["no JSON", "[]", "5", '{"a": 5}', '{"a": {}}'])
def test_a_senders_attribute_by_the_name_of_packed_ones_stays_the_senders(sqs: Any, dead_url: str, said: str) -> None:
    """A sender who uses the name stops nobody's dead letters from going back."""
    source = sqs.create_queue(QueueName="source")["QueueUrl"]
    queues, dead = site_queues(sqs, dead_url), DeadLetters(sqs, dead_url)
    died = replace(message(), attributes={PACKED: Value("String", said)})
    dead.send(DeadLetter(message=died, reason="r", source=queues.arn("source")))
    assert queues.redrive("source", dead_letters_url=dead_url) == 1
    [back] = received(sqs, source)
    assert back.attributes == died.attributes


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", 400, PeerRefused),
        ("QueueDoesNotExist", 400, PeerRefused),
        ("AccessDenied", 403, PeerRefused),
        ("KMS.DisabledException", 400, PeerRefused),
        ("InvalidClientTokenId", 403, PeerRefused),
        ("RequestThrottled", 400, PeerUnreachable),
        ("ServiceUnavailable", 503, PeerUnreachable),
        ("InternalError", 500, PeerUnreachable),
        ("KmsThrottled", 400, PeerUnreachable),
        ("KMS.ThrottlingException", 400, PeerUnreachable),
        ("InvalidParameterValue", 400, CallFailed),
    ],
)
def test_what_a_peer_answers_is_told_apart(code: str, status: int, expected: type[Exception]) -> None:
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(expected, match=code), _translate_errors("SendMessageBatch"):
        raise ClientError(response, "SendMessageBatch")  # type: ignore[arg-type]


def test_no_answer_may_pass() -> None:
    with pytest.raises(PeerUnreachable, match="ConnectTimeoutError"), _translate_errors("SendMessage"):
        raise ConnectTimeoutError(endpoint_url="https://sqs")


def test_a_peer_is_told_in_order_of_the_link_and_sent_batches(sqs: Any, dead_url: str) -> None:
    control = sqs.create_queue(QueueName="control.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    endpoint = Endpoint(region=REGION, account="123456789012", control_queue_url=control)
    peers = PeerQueues("123456789012")
    for body in ("one", "one", "two"):
        peers.send_control_message(LINK, endpoint, body)
    told = received(sqs, control)
    assert [(each.body, each.group_id) for each in told] == [("one", "link"), ("one", "link"), ("two", "link")]
    assert peers.send_batch(LINK, endpoint, dead_url, [Outgoing(body="b").entry("0")]) == {}
    with pytest.raises(PeerRefused):
        peers.send_batch(LINK, endpoint, dead_url + "-gone", [Outgoing(body="b").entry("0")])
    with pytest.raises(PeerRefused):
        peers.send_control_message(LINK, ENDPOINT, "no such queue")
