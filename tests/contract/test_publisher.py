"""What `sluice.publish` sends is what an exchange reads, on moto: types, limits, batches, partial failures."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

import sluice
from sluice import BadPublishRequest, NotPublished, Publisher, PublishRequest
from sluice.aws_rules import parse_queue_url
from sluice.errors import BadSetting, Malformed, QueueGone, SenderFault, TooLarge
from sluice.federation.matching.bindings import Bindings, RoutingTable
from sluice.federation.matching.metadata import ReceivedMessage, open_attributes
from sluice.federation.matching.typed_values import collect_headers, have_same_values
from sluice.federation.router import publish as at_the_exchange
from sluice.message import MAX_MESSAGE_BYTES, Message, Value

TYPED: dict[str, Any] = {
    "text": "a",
    "integer": 2,
    "negative": -(10**37),
    "float": 2.0,
    "small": 1e-100,
    "bytes": b"\0\xff",
    "true": True,
    "false": False,
    "void": None,
    "empty": "",
    "no bytes": b"",
    "long": 10**60,
    "large": 1e300,
    "control": "\x07",
    "AWS.name": "x",
    "": "no name",
    "x-qpid": "its own name",
}


@dataclass
class Queue:
    client: Any
    url: str

    def messages(self) -> list[Message]:
        """All of them, taken out."""
        found: list[Message] = []
        while received := self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages"):
            found += [Message.from_api(each) for each in received]
            for each in received:
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=each["ReceiptHandle"])
        return found

    def publisher(self) -> Publisher:
        return Publisher(self.url, self.client)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_ENDPOINT_URL", "SLUICE_INGRESS_URL"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        yield boto3.client("sqs", region_name="eu-central-1")


@pytest.fixture
def ingress(aws: Any) -> Queue:
    return Queue(aws, aws.create_queue(QueueName="ingress")["QueueUrl"])


@pytest.fixture
def fifo_ingress(aws: Any) -> Queue:
    return Queue(aws, aws.create_queue(QueueName="ingress.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"])


def headers(message: Message) -> dict[str, Any]:
    opened = open_attributes(message.attributes)
    assert opened.metadata is not None
    return collect_headers(opened.attributes, opened.metadata.headers)


def test_what_is_published_is_what_an_exchange_reads(ingress: Queue) -> None:
    message_id = sluice.publish(
        "amq.topic", "a.b", "body", headers=TYPED, ttl_ms=5_000, ingress_url=ingress.url, client=ingress.client
    )
    [message] = ingress.messages()
    assert (message.message_id, message.body) == (message_id, "body")
    assert have_same_values(headers(message), TYPED)
    metadata = open_attributes(message.attributes).metadata
    assert metadata is not None
    assert (metadata.exchange, metadata.key, metadata.ttl_ms) == ("amq.topic", "a.b", 5_000)
    native = {name for name in message.attributes if name != "x-qpid"}
    assert native == {"text", "integer", "negative", "float", "small", "bytes"}


def test_an_exchange_takes_it_without_trust(ingress: Queue) -> None:
    ingress.publisher().publish(PublishRequest(exchange="amq.fanout", key="k", body="b", headers={"t": True}))
    [message] = ingress.messages()
    receipt = ReceivedMessage(message=message, site="EAST", ulid="0" * 26, now_ms=message.sent_at_ms or 0)
    published = at_the_exchange(receipt, table=RoutingTable(Bindings()), trusted=False)
    assert [drop.reason for drop in published.dropped_messages] == ["unroutable"]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
        | st.binary(max_size=8) | st.text(st.characters(codec="utf-8"), max_size=8),
        max_size=20,
    )
)  # fmt: skip
def test_headers_of_any_type_come_out_as_they_went_in(typed: Mapping[str, Any]) -> None:
    outgoing = PublishRequest(exchange="x", body="b", headers=typed).to_message(fifo=False)
    assert len(outgoing.attributes) <= 10
    assert have_same_values(headers(Message(message_id="m", body="b", attributes=outgoing.attributes)), typed)


def test_attributes_stay_attributes_and_more_than_ten_come_out_too(ingress: Queue) -> None:
    attributes = {f"a{number}": number for number in range(12)} | {"labelled": Value("String.mine", "v")}
    ingress.publisher().publish(PublishRequest(exchange="x", body="b", attributes=attributes))
    [message] = ingress.messages()
    assert len(message.attributes) == 10
    opened = open_attributes(message.attributes).attributes
    assert opened["labelled"] == Value("String.mine", "v")
    assert {name: opened[name].text for name in attributes if name != "labelled"} == {
        f"a{number}": str(number) for number in range(12)
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"exchange": ""}, "name of 0 characters"),
        ({"exchange": "x" * 128}, "name of 128 characters"),
        ({"key": "k" * 257}, "a key of 257 characters, more than 256"),
        ({"key": "\ud800"}, "key is no Unicode text"),
        ({"body": ""}, "an empty body"),
        ({"body": "ab\x07"}, r"the body has '\\x07' at character 2"),
        ({"ttl_ms": 0}, "a TTL of 0 ms"),
        ({"ttl_ms": -1}, "a TTL of -1 ms"),
        ({"group": ""}, "a group of 0 characters"),
        ({"group": "ä"}, "a group of 1 characters"),
        ({"headers": {"n": float("nan")}}, "headers: "),
        ({"headers": {"list": [1]}}, "got `array`"),
        ({"headers": {"object": object()}}, "headers: "),
        ({"headers": {str(number): None for number in range(257)}}, "257 headers"),
        ({"headers": {"same": 1}, "attributes": {"same": 1}}, "header same: there is an attribute"),
        ({"attributes": {"x-qpid": "{}"}}, "attribute x-qpid: the name is taken"),
        ({"attributes": {"a b": "x"}}, "attribute a b: SQS has none such"),
        ({"attributes": {"t": True}}, "attribute t: SQS has none such"),
        ({"attributes": {"e": ""}}, "attribute e: SQS has none such"),
        ({"attributes": {f"a{number}": 1 for number in range(257)}}, "257 attributes"),
    ],
)
def test_what_cant_be_published_is_said_before_anything_is_sent(fields: Mapping[str, Any], reason: str) -> None:
    publishing = PublishRequest(**{"exchange": "x", "body": "b", **fields})
    with pytest.raises(Malformed, match=reason):
        publishing.to_message(fifo=True)


def test_metadata_counts_towards_the_largest_message(ingress: Queue) -> None:
    ingress.publisher().publish(PublishRequest(exchange="x", body="b" * (MAX_MESSAGE_BYTES - 100)))
    with pytest.raises(TooLarge, match="more than 1048576"):
        ingress.publisher().publish(PublishRequest(exchange="x", body="b" * (MAX_MESSAGE_BYTES - 10)))


def test_messages_of_one_key_keep_their_order_in_a_fifo_ingress(fifo_ingress: Queue) -> None:
    publisher = fifo_ingress.publisher()
    assert (
        publisher.publish_all(PublishRequest(exchange="x", key=str(n % 2), body=f"Message {n}") for n in range(25))
        == 25
    )
    messages = fifo_ingress.messages()
    assert len({message.group_id for message in messages}) == 2
    for key in (0, 1):
        of_key = [m.body for m in messages if open_attributes(m.attributes).metadata.key == str(key)]  # type: ignore[union-attr]
        assert of_key == [f"Message {n}" for n in range(25) if n % 2 == key]


def test_a_group_of_ones_own_is_kept_and_what_is_published_again_comes_once(fifo_ingress: Queue) -> None:
    publishing = PublishRequest(exchange="x", body="b", group="mine")
    for _ in range(2):
        fifo_ingress.publisher().publish(publishing)
    assert [message.group_id for message in fifo_ingress.messages()] == ["mine"]


@dataclass
class Recorder:
    """A client that passes requests on, and refuses entries of these places of its nth request."""

    client: Any
    refuse: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    requests: list[list[Any]] = field(default_factory=list)

    def send_message_batch(self, **fields: Any) -> Any:
        refused = self.refuse.get(len(self.requests), ())
        self.requests.append(fields["Entries"])
        taken = [entry for entry in fields["Entries"] if int(entry["Id"]) not in refused]
        done = self.client.send_message_batch(QueueUrl=fields["QueueUrl"], Entries=taken) if taken else {}
        failed = [{"Id": str(place), "Code": "InternalError", "Message": "by script"} for place in reversed(refused)]
        return done | {"Failed": failed}


def many(count: int) -> Iterator[PublishRequest]:
    return (PublishRequest(exchange="x", body=f"Message {number}") for number in range(count))


def test_many_go_ten_at_a_time(ingress: Queue) -> None:
    recorder = Recorder(ingress.client)
    assert Publisher(ingress.url, recorder).publish_all(many(25)) == 25  # type: ignore[arg-type]
    assert [len(entries) for entries in recorder.requests] == [10, 10, 5]
    assert sorted(m.body for m in ingress.messages()) == sorted(f"Message {number}" for number in range(25))


def test_no_request_has_more_than_sqs_takes(ingress: Queue) -> None:
    recorder = Recorder(ingress.client)
    large = [PublishRequest(exchange="x", body="b" * 400_000) for _ in range(5)]
    assert Publisher(ingress.url, recorder).publish_all(large) == 5  # type: ignore[arg-type]
    assert [len(entries) for entries in recorder.requests] == [2, 2, 1]


def test_messages_that_sqs_refuses_are_named_by_their_places_and_nothing_follows_them(ingress: Queue) -> None:
    recorder = Recorder(ingress.client, refuse={1: (2, 5)})
    with pytest.raises(NotPublished, match="2 of 20 messages failed, the first is message 12: InternalError") as caught:
        Publisher(ingress.url, recorder).publish_all(many(40))  # type: ignore[arg-type]
    assert (list(caught.value.failed), caught.value.tried) == ([12, 15], 20)
    assert len(ingress.messages()) == 18


def test_a_request_that_fails_names_all_of_its_messages(ingress: Queue) -> None:
    once = Config(retries={"total_max_attempts": 1})
    other = boto3.client("sqs", region_name="eu-central-1", endpoint_url="http://127.0.0.1:1", config=once)
    with pytest.raises(NotPublished, match="EndpointConnectionError") as caught:
        Publisher(ingress.url, other).publish_all(many(12))
    assert (list(caught.value.failed), caught.value.tried) == (list(range(10)), 10)


def test_a_message_that_cant_be_is_named_by_its_place_and_what_came_before_it_is_published(ingress: Queue) -> None:
    publishings = [*many(12), PublishRequest(exchange="x", body=""), *many(1)]
    with pytest.raises(BadPublishRequest, match="message 12: an empty body") as caught:
        ingress.publisher().publish_all(publishings)
    assert caught.value.place == 12
    assert isinstance(caught.value.fault, SenderFault)
    assert len(ingress.messages()) == 12


def test_an_ingress_that_is_gone_is_named(ingress: Queue) -> None:
    gone = Publisher(ingress.url + "-gone", ingress.client)
    with pytest.raises(QueueGone, match="-gone"):
        gone.publish(PublishRequest(exchange="x", body="b"))
    with pytest.raises(QueueGone, match="-gone"):
        gone.publish_all(many(1))


def test_the_environment_says_where_to_where_nobody_else_does(ingress: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="SLUICE_INGRESS_URL"):
        sluice.publish("x", "", "b")
    with pytest.raises(BadSetting, match="SLUICE_INGRESS_URL"):
        Publisher.from_environment()
    monkeypatch.setenv("SLUICE_INGRESS_URL", ingress.url)
    sluice.publish("x", "", "one")
    Publisher.from_environment().publish(PublishRequest(exchange="x", body="two"))
    assert sorted(message.body for message in ingress.messages()) == ["one", "two"]


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/1/q", "eu-west-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1"),
        ("http://127.0.0.1:4566/1/q", None),
        ("https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com/1/q", "eu-west-1"),
        ("https://eu-west-1.queue.amazonaws.com/1/q", "eu-west-1"),
        ("https://queue.amazonaws.com/1/q", "us-east-1"),
        ("https://sqs-fips.us-gov-west-1.amazonaws.com/1/q", "us-gov-west-1"),
        ("https://sqs.eu-west-1.api.aws/1/q", "eu-west-1"),
        ("https://sqs-fips.us-east-2.api.aws/1/q", "us-east-2"),
        ("https://vpce-0a1b-2c3d.sqs.ap-southeast-2.vpce.amazonaws.com/1/q", "ap-southeast-2"),
        ("https://vpce-0a1b-2c3d-eu-west-1a.sqs.eu-west-1.vpce.amazonaws.com/1/q", "eu-west-1"),
        ("https://sqs.cn-north-1.api.amazonwebservices.com.cn/1/q", "cn-north-1"),
        ("https://cn-north-1.queue.amazonaws.com.cn/1/q", "cn-north-1"),
        ("https://sqs.eusc-de-east-1.amazonaws.eu/1/q", "eusc-de-east-1"),
        ("https://sqs.eu-west-1.amazonaws.com.example.org/1/q", None),
        ("https://queue.amazonaws.com.example.org/1/q", None),
    ],
)
def test_the_region_is_the_queues_own_where_its_url_has_one(url: str, region: str | None) -> None:
    queue = parse_queue_url(url)
    assert (None if queue is None else queue.region) == region


def test_the_package_is_had_without_boto3() -> None:
    program = (
        "import sys, sluice; assert 'botocore' not in sys.modules; sluice.publish; assert 'botocore' in sys.modules\n"
        "assert 'boto3' not in sys.modules\n"
        "assert not hasattr(sluice, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
