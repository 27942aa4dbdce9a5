"""`sluice publish` and `sluice consume` on moto; the deployment is told by a fake CloudFormation on loopback."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import boto3
import pytest
import typer
from moto import mock_aws
from typer.testing import CliRunner, Result

from sluice.cli.program import app
from sluice.codec import encode
from sluice.errors import CallFailed, RequestRefused
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Introduction
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES
from sluice.federation.matching.metadata import Metadata, open_attributes, seal_attributes
from sluice.federation.operations import BindingsView, ListBindings, ShowSite, SiteView
from sluice.message import Message, Outgoing, Value
from sluice.operations import Operation, R, build_reply, parse_result
from sluice.operator.federated_sites import use_clients
from sluice.operator.messages import parse_attributes, parse_typed_values

REGION = "eu-central-1"
LOOPBACK = "127.0.0.1"


@dataclass
class Deployed:
    sqs: Any
    urls: dict[str, str]

    def received(self, name: str) -> list[Message]:
        found: list[Message] = []
        while received := self.sqs.receive_message(
            QueueUrl=self.urls[name],
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        ).get("Messages"):
            found += [Message.from_api(each) for each in received]
            for each in received:  # else a FIFO queue gives no more of the group
                self.sqs.delete_message(QueueUrl=self.urls[name], ReceiptHandle=each["ReceiptHandle"])
        return found

    def send(self, name: str, outgoing: Outgoing) -> None:
        self.sqs.send_message(QueueUrl=self.urls[name], **outgoing.fields())

    def left(self, name: str) -> int:
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.urls[name], AttributeNames=["All"])["Attributes"]
        return sum(int(value) for key, value in attributes.items() if key.startswith("ApproximateNumberOfMessages"))


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with mock_aws():
        sqs = boto3.client("sqs", region_name=REGION)
        fifo: Any = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        urls = {
            "in": sqs.create_queue(QueueName="in")["QueueUrl"],
            "in.fifo": sqs.create_queue(QueueName="in.fifo", Attributes=fifo)["QueueUrl"],
            "orders": sqs.create_queue(QueueName="stack-orders-1")["QueueUrl"],
            "jobs": sqs.create_queue(QueueName="jobs")["QueueUrl"],
        }
        outputs = {
            "IngressUrl": (urls["in"], ""),
            "FifoIngressUrl": (urls["in.fifo"], ""),
            "IngressordersUrl": (urls["in"], "orders"),  # an exchange's own, of the same name as the queue
            "QueueordersUrl": (urls["orders"], "orders"),
        }
        with fake_cloudformation(outputs) as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", endpoint)
            yield Deployed(sqs, urls)


@contextmanager
def fake_cloudformation(outputs: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Tells of one stack with these outputs, each a value and a description."""
    members = "".join(
        f"<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue>"
        f"<Description>{description}</Description></member>"
        for key, (value, description) in outputs.items()
    )
    body = (
        "<DescribeStacksResponse><DescribeStacksResult><Stacks><member><StackName>SluiceFederation</StackName>"
        f"<Outputs>{members}</Outputs></member></Stacks></DescribeStacksResult></DescribeStacksResponse>"
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


BOUND = (
    BindingDeclaration(exchange="amq.topic", queue="q", key="#"),
    BindingDeclaration(exchange="amq.match", queue="q", arguments={"x-match": "all", "n": 2}),
)


class Asked:
    """A site's links function, which is asked for its exchanges and bindings, or can't be."""

    def __init__(self, fault: Exception | None = None, bound: Sequence[BindingDeclaration] = BOUND) -> None:
        self.fault, self.bound = fault, bound

    def ask(self, operation: Operation[R], /) -> R:
        if self.fault is not None:
            raise self.fault
        if isinstance(operation, ListBindings):
            bound = tuple(binding for binding in self.bound if binding.exchange == operation.exchange)
            listed = encode(build_reply(BindingsView(version=1, bindings=bound)))
            return cast("R", parse_result(operation, listed))
        assert isinstance(operation, ShowSite)
        address = Introduction(
            tag="A", region="r", account="1", control_queue_url="c", ingress_url="i", fifo_ingress_url="f"
        )
        nothing: dict[str, Any] = dict.fromkeys(("peers", "feeds", "links", "bridges"), ())
        view = SiteView(address=address, peer_accounts=frozenset(), exchanges=STANDARD_EXCHANGES, bindings=0, **nothing)
        reply = encode(build_reply(view))
        return cast("R", parse_result(operation, reply))  # to mypy the assertion has made it another operation's


def publish(*arguments: str, fault: Exception | None = None, code: int = 0, stdin: str | None = None) -> Result:
    """`sluice publish` at a site that is asked for its exchanges, or can't be."""
    with use_clients(lambda _: Asked(fault)):
        return sluice("publish", *arguments, code=code, stdin=stdin)


def sluice(*arguments: str, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result


def test_a_message_is_published_with_key_headers_attributes_and_ttl(deployed: Deployed) -> None:
    result = publish(
        REGION, "amq.match", "k", "hello", "--header", "n=2", "--header", "v", "--header", "text=a=b",
        "--attribute", "reply-to=me", "--attribute", "count:Number=3", "--attribute", "raw:Binary=AA==", "--ttl", "1.5",
    )  # fmt: skip
    assert result.stderr == "1 published to amq.match\n"
    [message] = deployed.received("in")
    opened = open_attributes(message.attributes)
    assert message.body == "hello"
    assert opened.metadata == Metadata(exchange="amq.match", key="k", ttl_ms=1_500, headers={"v": None})
    assert opened.attributes == {
        "n": Value("Number", "2"),
        "text": Value("String", "a=b"),
        "reply-to": Value("String", "me"),
        "count": Value("Number", "3"),
        "raw": Value("Binary", b"\0"),
    }


@pytest.mark.parametrize(
    ("arguments", "is_routed"),
    [
        (("amq.topic", "orders.new"), True),
        (("amq.topic", "bills.new"), False),
        (("amq.direct", "orders.new"), False),
        (("amq.match", "", "--header", "n=2"), True),
        (("amq.match", "", "--attribute", "n:Number=2"), True),
        (("amq.match", "", "--header", "n=3"), False),
    ],
)
def test_a_message_that_no_binding_matches_is_published_and_said_to_reach_no_queue(
    deployed: Deployed, arguments: tuple[str, ...], *, is_routed: bool
) -> None:
    exchange, key, *options = arguments
    bound = (BindingDeclaration(exchange="amq.topic", queue="q", key="orders.#"), BOUND[1])
    with use_clients(lambda _: Asked(bound=bound)):
        said = sluice("publish", REGION, exchange, key, "b", *options).stderr
    assert ("no queue gets it" in said) is not is_routed
    assert len(deployed.received("in")) == 1


def test_a_body_comes_from_standard_input(deployed: Deployed) -> None:
    publish(REGION, "amq.topic", "k", stdin="one\ntwo")
    publish(REGION, "amq.topic", "k", "-", stdin="three")
    assert sorted(message.body for message in deployed.received("in")) == ["one\ntwo", "three"]
    assert "an empty body" in publish(REGION, "amq.topic", "k", stdin="", code=1).stderr


def test_several_are_published_in_order_to_the_fifo_ingress(deployed: Deployed) -> None:
    result = publish(REGION, "amq.topic", "k", "b", "--fifo", "--group", "g", "--count", "12", "--json")
    assert json.loads(result.stdout) == {"published": 12}
    assert [message.group_id for message in deployed.received("in.fifo")] == ["g"] * 12


def test_what_cant_be_published_is_said_with_exit_code_1(deployed: Deployed) -> None:
    assert "a key of 257 characters" in publish(REGION, "amq.topic", "k" * 257, "b", code=1).stderr
    assert deployed.received("in") == []


@pytest.mark.parametrize("options", [(), ("--json",), ("--fifo",)])
def test_an_exchange_that_isnt_there_is_an_error_that_names_those_that_are(
    deployed: Deployed, options: tuple[str, ...]
) -> None:
    result = publish(REGION, "orderz", "k", "b", *options, code=1)
    assert (result.stdout, result.stderr) == (
        "",
        "no such exchange at eu-central-1: orderz; there are amq.direct, amq.topic, amq.fanout, amq.match\n",
    )
    assert deployed.received("in") + deployed.received("in.fifo") == []


@pytest.mark.parametrize(
    "fault", [CallFailed("Invoke", "AccessDeniedException", "no"), RequestRefused("no such operation: 'exchanges'")]
)
def test_who_may_only_send_publishes_and_is_told_that_nobody_could_be_asked(
    deployed: Deployed, fault: Exception
) -> None:
    said = publish(REGION, "orderz", "k", "b", fault=fault).stderr
    assert "not checked whether eu-central-1 has an exchange orderz: " in said
    assert "1 published to orderz" in said
    assert [message.body for message in deployed.received("in")] == ["b"]


def test_a_site_without_federation_is_said_to_have_none(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cloudformation({}) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", endpoint)
        said = publish(REGION, "amq.topic", "k", "b", code=1).stderr
        assert "stack SluiceFederation has no output IngressUrl" in said
        listed = sluice("route", "list", REGION, code=1).stderr
    assert f"{REGION}: stack SluiceFederation has no output LinksFunctionName" in listed


def test_messages_are_printed_and_taken_out(deployed: Deployed) -> None:
    for body in ("one", "two"):
        deployed.send("orders", Outgoing(body=body))
    result = sluice("consume", REGION, "orders", "--count", "2")
    assert sorted(result.stdout.split()) == ["one", "two"]
    assert deployed.left("orders") == 0


def test_no_more_are_taken_out_than_asked_for(deployed: Deployed) -> None:
    for number in range(13):
        deployed.send("jobs", Outgoing(body=str(number)))
    assert len(sluice("consume", REGION, "jobs", "--count", "11").stdout.split()) == 11
    assert len(sluice("consume", REGION, deployed.urls["jobs"], "--wait", "0").stdout.split()) == 2


def test_fewer_than_asked_for_are_exit_code_1(deployed: Deployed) -> None:
    deployed.send("jobs", Outgoing(body="one"))
    result = sluice("consume", REGION, "jobs", "--count", "2", "--wait", "0", code=1)
    assert (result.stdout, result.stderr) == ("one\n", "only 1 of 2 messages: no more arrived within 0 s\n")


def test_what_is_kept_is_there_for_the_next(deployed: Deployed) -> None:
    deployed.send("jobs", Outgoing(body="one"))
    for _ in range(2):
        assert sluice("consume", REGION, "jobs", "--keep", "--count", "1").stdout == "one\n"
    assert deployed.left("jobs") == 1


def test_programs_get_an_object_a_message_with_its_metadata(deployed: Deployed) -> None:
    metadata = Metadata(
        exchange="amq.topic", key="a.b", trace=("EAST", "WEST"), message_id="EAST." + "0" * 26, headers={"t": True}
    )
    attributes = seal_attributes("b", {"n": Value("Number", "2"), "raw": Value("Binary", b"\0")}, metadata)
    deployed.send("jobs", Outgoing(body="b", attributes=attributes))
    assert json.loads(sluice("consume", REGION, "jobs", "--count", "1", "--json").stdout) == {
        "body": "b",
        "exchange": "amq.topic",
        "key": "a.b",
        "trace": ["EAST", "WEST"],
        "id": "EAST." + "0" * 26,
        "ttl_ms": None,
        "group": None,
        "headers": {"n": 2, "raw": {"base64": "AA=="}, "t": True},
    }


def test_a_message_whose_metadata_cant_be_read_is_printed_with_the_reason(deployed: Deployed) -> None:
    deployed.send("jobs", Outgoing(body="b", attributes={"x-qpid": Value("String", "{"), "n": Value("Number", "2")}))
    document = json.loads(sluice("consume", REGION, "jobs", "--count", "1", "--json").stdout)
    assert (document["body"], document["key"], document["headers"]["n"]) == ("b", None, 2)
    assert document["error"].startswith("x-qpid: ")


def test_a_queue_that_isnt_there_is_named(deployed: Deployed) -> None:
    assert "no such queue: nope" in sluice("consume", REGION, "nope", code=1).stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.0", 1.0), ("true", True), ("null", None), ('"1"', "1"), ("NaN", "NaN"), ("1e999", "1e999"),
     ("[1]", "[1]"), ('{"a": 1}', '{"a": 1}'), ('{"base64": "AA=="}', b"\0"), ('{"base64": "?"}', '{"base64": "?"}'),
     ("", ""), ("all", "all"), ("[" * 100_000, "[" * 100_000)],
)  # fmt: skip
def test_a_value_is_json_where_it_is_a_scalar_and_else_a_text(text: str, value: object) -> None:
    [typed] = parse_typed_values([f"n={text}"], option="--header").values()
    assert (type(typed), typed) == (type(value), value)


@pytest.mark.parametrize("option", ["", "=x", "a", ":Number=1", "a:Integer=1", "a:Binary=?", "a:Binary=AA"])
def test_an_attribute_that_is_none_is_named(option: str) -> None:
    with pytest.raises(typer.BadParameter, match="--attribute"):
        parse_attributes([option], option="--attribute")


def test_an_option_is_given_once() -> None:
    with pytest.raises(typer.BadParameter, match="given twice"):
        parse_attributes(["a=1", "a:Number=2"], option="--attribute")
    with pytest.raises(typer.BadParameter, match="given twice"):
        parse_typed_values(["a=1", "a"], option="--header")
