"""The exchange, bridge and links functions as Lambda calls them, on moto: reports, and dead letters with reasons."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.sqs.models import DEFAULT_SENDER_ID
from msgspec.structs import asdict

from functions.bridge import handler as bridge
from functions.exchange import handler as exchange
from functions.links import handler as links
from sluice.aws.clients import lambda_client, new_id, now_ms, sqs_client
from sluice.aws.documents import LINKS, PEERS, DynamoDocument
from sluice.aws.federation.routes import RouteRates
from sluice.codec import encode
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.messages import Hello, decode_control, encode_control
from sluice.federation.links.peers import KNOWN_PEERS, Peer
from sluice.federation.links.registry import REGISTRY, BridgeRecord, LinkRecord, Registry
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.splitting.filters.values import Filter
from tests.functions.conftest import CONTEXT, Surroundings
from tests.peer_rules import EVERYTHING

ACCOUNT, REGION = "123456789012", "eu-central-1"
SENDER = DEFAULT_SENDER_ID  # of all that moto's queues are sent
QUEUES = ("plain", "ingress", "links", "source", "peer-ingress")
FIFO_QUEUES = (
    "ingress.fifo",
    "trusted.fifo",
    "peers.fifo",
    "control.fifo",
    "peer-control.fifo",
    "peer-ingress.fifo",
    "route.fifo",
    "dead.fifo",
)


@pytest.fixture
def federation(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    """The offers queue stands in as the ingress, the time-outs queue as the ticks queue."""
    for name in QUEUES:
        surroundings.sqs.create_queue(QueueName=name)
    for name in FIFO_QUEUES:
        surroundings.sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})
    ingresses = {
        "ingress": {"fifo": False},
        "ingress.fifo": {"fifo": True},
        "trusted.fifo": {"fifo": True, "trusted": True},
        "peers.fifo": {"fifo": True, "from_links": True},
    }
    dead_arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"
    for name, value in {
        "SITE": "HERE",
        "ACCOUNT": ACCOUNT,
        "TICKS_QUEUE_URL": surroundings.timeouts_url,
        "INGRESSES": json.dumps(ingresses),
        "HERE": encode(address(surroundings, "HERE")).decode(),
        "BRIDGE_FUNCTION": "bridge",
        "BRIDGE_DEAD_LETTERS_ARN": dead_arn,
        "FIFO_BRIDGE_DEAD_LETTERS_ARN": f"{dead_arn}.fifo",
        "ACCOUNTS": json.dumps([ACCOUNT]),
        "COUNTS_SETTLE_S": "60",
        "NAMES": json.dumps({"queues": {"orders": "plain"}, "patterns": ["source*", "route*"], "taken": []}),
        "DECLARATION": "{}",
    }.items():
        monkeypatch.setenv(name, value)
    forget()
    know(surroundings, Peer(tag="THERE", account=ACCOUNT, region=REGION, senders=(SENDER,), **EVERYTHING))
    yield surroundings
    forget()


def know(federation: Surroundings, *peers: Peer) -> None:
    """Have these peers, and no others."""
    document = DynamoDocument(client=federation.dynamodb, table="t", name=PEERS, new_token=new_id)
    assert document.save(KNOWN_PEERS.pack({peer.tag: peer for peer in peers}), after=document.version())


def forget() -> None:
    lambda_client.cache_clear()
    for function in (exchange, bridge, links):
        function.dependencies.cache_clear()


def url_of(surroundings: Surroundings, name: str) -> str:
    return surroundings.offers_url.rsplit("/", 1)[0] + "/" + name


def address(surroundings: Surroundings, tag: str) -> Address:
    prefix = "" if tag == "HERE" else "peer-"
    return Address(
        tag=tag,
        region=REGION,
        account=ACCOUNT,
        control_queue_url=url_of(surroundings, f"{prefix}control.fifo"),
        ingress_url=url_of(surroundings, f"{prefix}ingress"),
        fifo_ingress_url=url_of(surroundings, f"{prefix}ingress.fifo"),
    )


def ask(**request: Any) -> Any:
    answer = json.loads(json.dumps(links.handler(request, CONTEXT)))  # as Lambda does
    assert "error" not in answer, answer
    return answer["result"]


def send_fifo(federation: Surroundings, queue: str, body: str, *, group: str = "g", **attributes: str) -> None:
    federation.sqs.send_message(
        QueueUrl=url_of(federation, queue),
        MessageBody=body,
        MessageGroupId=group,
        MessageDeduplicationId=body,
        MessageAttributes={
            name.replace("_", "-"): {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        },
    )


def letters(federation: Surroundings) -> dict[str, str]:
    """Bodies of dead letters with the reason."""
    return {
        message["Body"]: message["MessageAttributes"]["sluice-reason"]["StringValue"]
        for message in federation.messages(federation.dead_letters_url)
    }


def failures(event: dict[str, Any], response: Any) -> list[str]:
    """Bodies of what is to come again."""
    ids = {failure["itemIdentifier"] for failure in response["batchItemFailures"]}
    return [record["body"] for record in event["Records"] if record["messageId"] in ids]


def told(federation: Surroundings) -> list[dict[str, Any]]:
    return [json.loads(message["Body"]) for message in federation.messages(federation.timeouts_url)]


def forbid(federation: Surroundings, *queues: str) -> None:
    """Let the functions' client be refused by these queues."""
    urls = {url_of(federation, name) for name in queues}

    def refuse(params: dict[str, Any], **_: object) -> None:
        if params["QueueUrl"] in urls:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "by its policy"}}, "SendMessageBatch")

    sqs_client().meta.events.register_first("provide-client-params.sqs.SendMessageBatch", refuse)


# The exchange function


def test_a_message_goes_to_the_queues_that_are_bound(federation: Surroundings) -> None:
    ask(op="bind", exchange="amq.topic", queue="orders", key="a.#")
    federation.send(url_of(federation, "ingress"), "hit", {"exchange": "amq.topic", "routing-key": "a.b"})
    federation.send(url_of(federation, "ingress"), "miss", {"exchange": "amq.topic", "routing-key": "b"})
    assert exchange.handler(federation.event(url_of(federation, "ingress")), CONTEXT) == {"batchItemFailures": []}
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["hit"]
    assert letters(federation) == {}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"exchange": "nowhere"}, "UnknownExchange: no such exchange: nowhere"),
        ({}, "names no exchange"),
        ({"x-qpid": "no JSON"}, "Malformed: x-qpid"),
        ({"x-qpid": "[]"}, "x-qpid: Expected `object`, got `array`"),
        ({"x-qpid": '{"exchange": "amq.fanout", "key": "' + "k" * 257 + '"}'}, "length <= 256 - at `$.key`"),
        ({"exchange": "amq.fanout", "routing-key": "k" * 257}, "257 characters, more than 256"),
        ({"x-qpid": '{"exchange": "amq.fanout", "trace": ["not a tag"]}'}, "at `$.trace[0]`"),
        ({"x-qpid": json.dumps({"exchange": "amq.fanout", "trace": ["A"] * 65})}, "length <= 64 - at `$.trace`"),
        ({"x-qpid": '{"exchange": "amq.fanout", "id": "../../etc"}'}, "at `$.id`"),
    ],
)
def test_what_can_never_be_routed_is_a_dead_letter_with_the_reason_and_the_rest_goes_on(
    federation: Surroundings, attributes: dict[str, str], reason: str
) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    federation.send(url_of(federation, "ingress"), "bad", attributes)
    federation.send(url_of(federation, "ingress"), "good", {"exchange": "amq.fanout"})
    assert exchange.handler(federation.event(url_of(federation, "ingress")), CONTEXT) == {"batchItemFailures": []}
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["good"]
    found = letters(federation)
    assert found.keys() == {"bad"}
    assert reason in found["bad"]


def test_a_copy_whose_queue_is_gone_is_a_dead_letter_and_the_others_arrive(federation: Surroundings) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    ask(op="bind", exchange="amq.fanout", queue="source")
    federation.sqs.delete_queue(QueueUrl=url_of(federation, "source"))
    federation.send(url_of(federation, "ingress"), "m", {"exchange": "amq.fanout"})
    new = federation.event(url_of(federation, "ingress"))
    assert failures(new, exchange.handler(new, CONTEXT)) == ["m"]  # its queue may have been made just now
    assert told(federation) == [{"op": "gone", "copies": {"source": 0}}]
    federation.send(url_of(federation, "ingress"), "m2", {"exchange": "amq.fanout"})
    again = federation.event(url_of(federation, "ingress"), receives=2)
    assert exchange.handler(again, CONTEXT) == {"batchItemFailures": []}
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["m", "m2"]
    [letter] = federation.messages(federation.dead_letters_url)
    said = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert letter["Body"] == "m2"
    assert said["sluice-reason"].startswith("QueueGone: no such queue: ")
    assert said["sluice-source"].endswith(":source")  # where it goes, should that come back
    assert json.loads(said["x-qpid"])["exchange"] == "amq.fanout"


def test_a_copy_that_its_queue_refuses_is_a_dead_letter_and_the_queue_is_named(
    federation: Surroundings, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    ask(op="bind", exchange="amq.fanout", queue="source")
    forbid(federation, "source")
    for receives in (1, 2):
        federation.send(url_of(federation, "ingress"), f"m{receives}", {"exchange": "amq.fanout"})
        event = federation.event(url_of(federation, "ingress"), receives=receives)
        assert failures(event, exchange.handler(event, CONTEXT)) == ["m1"] * (receives == 1)
    assert [message["Body"] for message in federation.messages(url_of(federation, "plain"))] == ["m1", "m2"]
    [letter] = federation.messages(federation.dead_letters_url)
    said = {name: value["StringValue"] for name, value in letter["MessageAttributes"].items()}
    assert letter["Body"] == "m2"
    assert said["sluice-reason"].startswith("NotDelivered: SendMessageBatch: AccessDenied: ")
    assert said["sluice-source"].endswith(":source")
    assert '"queue":"source"' in capsys.readouterr().out.replace(" ", "")
    [report] = told(federation)  # one a minute is enough
    assert (report["op"], report["copies"], list(report["refusals"])) == ("gone", {}, ["source"])
    links.handler(report, CONTEXT)
    refusing = ask(op="site")["refusing"]
    assert (list(refusing), refusing["source"].partition(": ")[0]) == (["source"], "SendMessageBatch")


@pytest.mark.parametrize(("queue", "arrives"), [("ingress.fifo", True), ("trusted.fifo", False)])
def test_a_claimed_trace_is_believed_of_links_alone(federation: Surroundings, queue: str, arrives: bool) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    send_fifo(federation, queue, "m", x_qpid='{"exchange": "amq.fanout", "trace": ["HERE"]}')
    assert exchange.handler(federation.event(url_of(federation, queue)), CONTEXT) == {"batchItemFailures": []}
    assert (len(federation.messages(url_of(federation, "plain"))) == 1) is arrives
    assert letters(federation) == {}


# The bridge function


def routed(federation: Surroundings, *, peer_ingress: str = "peer-ingress.fifo", **fields: Any) -> None:
    """A route from `route.fifo` that is up."""
    peer = Address(**asdict(address(federation, "THERE")) | {"fifo_ingress_url": url_of(federation, peer_ingress)})
    link = Link(name="link", peer="THERE", endpoints=(peer.endpoint,))
    status = LinkStatus(state=LinkState.OPERATIONAL, carrying_since_ms=1)
    made = Bridge(name="route", link="link", dest="amq.fanout", src_is_local=True, **{"src": "amq.topic", **fields})
    registry = Registry(
        here="HERE",
        links={"link": LinkRecord(link=link, status=status, address=peer)},
        bridges={"route": BridgeRecord(bridge=made, queue="route.fifo", mapping="m", on=True, bound=True)},
    )
    document = DynamoDocument(client=federation.dynamodb, table="t", name=LINKS, new_token=lambda: "token")
    assert document.save(REGISTRY.pack(registry), after=document.version())


def forward(federation: Surroundings, *, receives: int = 1) -> list[str]:
    event = federation.event(url_of(federation, "route.fifo"), receives=receives)
    return failures(event, bridge.handler(event, CONTEXT))


def test_what_is_in_a_bridge_queue_goes_to_the_peers_ingress(federation: Surroundings) -> None:
    routed(federation)
    for body in ("1", "2", "3"):
        send_fifo(federation, "route.fifo", body)
    assert forward(federation) == []
    arrived = federation.messages(url_of(federation, "peer-ingress.fifo"))
    assert [each["Body"] for each in arrived] == ["1", "2", "3"]
    metadata = json.loads(arrived[0]["MessageAttributes"]["x-qpid"]["StringValue"])
    assert (metadata["exchange"], metadata["trace"]) == ("amq.fanout", ["HERE"])
    assert told(federation) == []


def test_a_routes_filter_is_asked_by_the_bridge(federation: Surroundings, capsys: pytest.CaptureFixture[str]) -> None:
    routed(federation, filter=Filter(attributes=(("author", "^me$"),), jq=".Body | length == 1"))
    for body, author in (("1", "me"), ("22", "me"), ("3", "you")):
        send_fifo(federation, "route.fifo", body, author=author)
    assert forward(federation) == []
    assert [message["Body"] for message in federation.messages(url_of(federation, "peer-ingress.fifo"))] == ["1"]
    assert '"MessagesDropped_filtered":[2.0]' in capsys.readouterr().out.replace(" ", "")
    assert letters(federation) == {}


def test_a_route_with_a_rate_takes_its_turn_and_waits_for_no_late_one(federation: Surroundings) -> None:
    routed(federation, rate=1_000)
    send_fifo(federation, "route.fifo", "1")
    assert forward(federation) == []
    rates = RouteRates(federation.dynamodb, "t")
    assert rates.reserve_ms("route", messages=10, rate=1, now_ms=now_ms()) is not None
    send_fifo(federation, "route.fifo", "2", group="h")
    assert forward(federation, receives=500) == ["2"]
    assert [message["Body"] for message in federation.messages(url_of(federation, "peer-ingress.fifo"))] == ["1"]
    assert letters(federation) == {}


def test_an_outage_never_makes_a_dead_letter_and_is_told(federation: Surroundings) -> None:
    routed(federation, peer_ingress="gone.fifo")
    send_fifo(federation, "route.fifo", "1")
    assert forward(federation, receives=500) == ["1"]
    assert letters(federation) == {}
    [said] = told(federation)
    assert (said["op"], said["link"], said["refused"]) == ("outage", "link", True)
    links.handler(said, CONTEXT)
    [link] = ask(op="site")["links"]
    assert (link["status"]["state"], "NonExistentQueue" in link["status"]["last_error"]) == ("Failed", True)


def test_a_queue_that_no_route_reads_waits(federation: Surroundings) -> None:
    send_fifo(federation, "route.fifo", "1")
    assert forward(federation, receives=500) == ["1"]
    assert letters(federation) == {}


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ("no JSON", "Malformed: x-qpid"),
        ('{"trace": "THERE"}', "at `$.trace`"),
        ('{"overflow": {"a": 5}}', "at `$.overflow"),
    ],
)
def test_what_can_never_cross_is_a_dead_letter_with_the_reason(
    federation: Surroundings, claims: str, reason: str
) -> None:
    routed(federation)
    send_fifo(federation, "route.fifo", "bad", x_qpid=claims)
    send_fifo(federation, "route.fifo", "good")
    assert forward(federation) == []
    assert reason in letters(federation)["bad"]
    assert [message["Body"] for message in federation.messages(url_of(federation, "peer-ingress.fifo"))] == ["good"]


@pytest.mark.parametrize("src_is_queue", [True, False])
def test_a_queue_routes_loop_ends_as_a_dead_letter_and_an_exchange_routes_is_counted(
    federation: Surroundings, capsys: pytest.CaptureFixture[str], src_is_queue: bool
) -> None:
    fields: dict[str, Any] = {"src": "route.fifo", "src_is_queue": True} if src_is_queue else {}
    routed(federation, **fields)
    send_fifo(federation, "route.fifo", "again", x_qpid='{"trace": ["HERE", "THERE"]}')
    assert forward(federation) == []
    assert letters(federation) == ({"again": "Dropped: dropped by route route: loop"} if src_is_queue else {})
    assert '"MessagesDropped_loop":[1.0]' in capsys.readouterr().out.replace(" ", "")


# The links function


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "dance"}, "no such operation"),
        ({}, "no such operation"),
        ({"op": ["tick"]}, "no such operation"),
        ({"op": "bind", "exchange": "amq.fanout"}, "missing required field `queue`"),
        ({"op": "bind", "exchange": 5, "queue": "orders"}, "$.exchange"),
        ({"op": "bind", "exchange": "amq.fanout", "queue": "dead"}, "not a queue that this site may use"),
        ({"op": "bind", "exchange": "nowhere", "queue": "orders"}, "no such exchange: nowhere"),
        ({"op": "bind", "exchange": "amq.direct", "queue": "orders", "key": "k" * 257}, "257 characters"),
        ({"op": "bind", "exchange": "amq.fanout", "queue": "source-gone"}, "no such queue"),
        ({"op": "unbind", "exchange": "amq.fanout", "queue": "orders"}, "is not bound to amq.fanout"),
        ({"op": "exchange_add", "name": "e", "type": "round"}, "'round' - at `$.type`"),
        ({"op": "exchange_add", "name": "a b", "type": "topic"}, "an exchange's name"),
        ({"op": "exchange_add", "name": "e", "type": ["topic"]}, "$.type"),
        ({"op": "exchange_add", "name": "e", "type": "topic", "alternate": 5}, "$.alternate"),
        ({"op": "exchange_add", "type": "topic"}, "missing required field `name`"),
        ({"op": "exchange_add", "name": "e", "type": "topic", "alternate": "nowhere"}, "nowhere"),
        ({"op": "exchange_del", "name": "amq.topic"}, "every site has this exchange"),
        ({"op": "exchange_del"}, "missing required field `name`"),
        ({"op": "bindings", "exchange": ["amq.topic"]}, "$.exchange"),
        ({"op": "link_add"}, "missing required field `link`"),
        ({"op": "link_add", "link": {"name": "l"}}, "missing required field `peer` - at `$.link`"),
        ({"op": "link_add", "link": {"name": "l", "peer": "THERE", "endpoints": []}}, "0 endpoints"),
        ({"op": "link_add", "link": {"name": 5, "peer": "THERE", "endpoints": []}}, "$.link.name"),
        ({"op": "link_del", "name": "none"}, "no such link: none"),
        ({"op": "link_tell", "name": "none", "command": "pause"}, "no such link: none"),
        ({"op": "link_tell", "name": "none", "command": "dance"}, "'dance' - at `$.command`"),
        ({"op": "link_del", "name": "none", "surprise": 1}, "unknown field `surprise`"),
        ({"op": "bridge_add", "bridge": {"name": "b"}}, "$.bridge"),
        ({"op": "bridge_add", "bridge": {"name": "b", "link": "l", "src": "s", "dest": "d"}}, "no such link: l"),
        (
            {"op": "bridge_add", "bridge": {"name": "b", "link": "l", "src": "s", "dest": "d", "sync": True}},
            "$.bridge.sync",
        ),
        ({"op": "bridge_del", "name": "none"}, "no such route: none"),
        ({"op": "bridge_tell", "name": "none", "command": "pause"}, "no such route: none"),
        ({"op": "redrive", "name": "none"}, "no such route: none"),
        ({"op": "outage"}, "missing required field `link`"),
    ],
)
def test_what_the_asker_did_wrong_is_said_and_changes_nothing(
    federation: Surroundings, request_: dict[str, Any], error: str
) -> None:
    before = ask(op="site")
    assert error in links.handler(request_, CONTEXT).get("error", "nothing is wrong")
    assert ask(op="site") == before


@pytest.mark.parametrize("body", ["no JSON", "[]", "5", "null", '{"op": "dance"}', '{"op": "outage"}', "[" * 50_000])
def test_a_tick_that_says_nothing_is_a_dead_letter(federation: Surroundings, body: str) -> None:
    federation.send(federation.timeouts_url, body)
    assert links.handler(federation.event(federation.timeouts_url), CONTEXT) == {"batchItemFailures": []}
    assert letters(federation)[body].startswith(("Malformed", "BadRequest"))


def hello(federation: Surroundings, **fields: Any) -> str:
    pulled: Any = {"name": "pulled", "link": "their-link", "src": "amq.fanout", "dest": "amq.fanout"}
    pulls = (Bridge(**{**pulled, **fields}),)
    return encode_control(Hello(link="their-link", sender=address(federation, "THERE"), pulls=pulls))


def hear(federation: Surroundings, *bodies: str) -> list[str]:
    for body in bodies:
        federation.sqs.send_message(
            QueueUrl=url_of(federation, "control.fifo"),
            MessageBody=body,
            MessageGroupId="g",
            MessageDeduplicationId=str(hash(body)),
        )
    event = federation.event(url_of(federation, "control.fifo"))
    return failures(event, links.handler(event, CONTEXT))


@pytest.mark.parametrize(
    "body", ["no JSON", "[]", '{"op": "hello"}', '{"op": "hello", "link": "l", "from": {"tag": 5}}', "[" * 50_000]
)
def test_a_peers_message_that_says_nothing_is_a_dead_letter(federation: Surroundings, body: str) -> None:
    assert hear(federation, body) == []
    assert letters(federation)[body].startswith("Malformed")


def test_a_site_of_a_strange_account_is_not_listened_to(federation: Surroundings) -> None:
    strange = json.loads(hello(federation))
    strange["value"]["sender"]["account"] = "999999999999"
    assert hear(federation, json.dumps(strange)) == []
    reason = f"THERE: is at {ACCOUNT}/{REGION}, not at 999999999999/{REGION}"
    assert reason in letters(federation)[json.dumps(strange)]
    assert ask(op="site")["links"] == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sync": 0}, "sync 0"),
        ({"sync": 0, "credit": 5}, "sync 0"),
        ({"max_hops": 10**9}, "max hops"),
        ({"tag": "no tag"}, "is no tag"),
        ({"src": "amq.topic", "key": "k" * 257}, "257 characters"),
        ({"src_is_local": True}, "isn't pulled"),
    ],
)
def test_a_hello_that_asks_for_what_cannot_be_is_refused_with_the_reason(
    federation: Surroundings, fields: dict[str, Any], reason: str
) -> None:
    assert hear(federation, hello(federation, **fields)) == []
    [answer] = federation.messages(url_of(federation, "peer-control.fifo"))
    assert reason in decode_control(answer["Body"]).reason  # type: ignore[union-attr]  # a refusal has one
    assert ask(op="site")["bridges"] == []


def test_a_tag_that_is_no_peers_is_not_listened_to(federation: Surroundings) -> None:
    said = json.loads(hello(federation))
    said["value"]["sender"]["tag"] = "HERE"
    assert hear(federation, json.dumps(said)) == []
    assert "'HERE' is no peer of this site" in letters(federation)[json.dumps(said)]
    assert federation.messages(url_of(federation, "peer-control.fifo")) == []


def test_what_a_peer_may_not_pull_its_answer_says_and_the_rest_goes_on(federation: Surroundings) -> None:
    know(
        federation,
        Peer(tag="THERE", account=ACCOUNT, region=REGION, senders=(SENDER,), pulls=("amq.topic:eu.#",), pushes=("*",)),
    )
    assert hear(federation, hello(federation)) == []
    [answer] = federation.messages(url_of(federation, "peer-control.fifo"))
    said = "THERE may not pull amq.fanout: its peer rule here says amq.topic:eu.#"
    assert decode_control(answer["Body"]).bridges == {"pulled": f"Failed: {said}"}  # type: ignore[union-attr]  # an answer
    assert (ask(op="site")["bridges"], letters(federation)) == ([], {})


def test_what_a_peer_sends_is_marked_as_its_own(federation: Surroundings) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    send_fifo(federation, "peers.fifo", "m", x_qpid='{"exchange": "amq.fanout", "key": "", "trace": ["FAR"]}')
    assert exchange.handler(federation.event(url_of(federation, "peers.fifo")), CONTEXT) == {"batchItemFailures": []}
    [arrived] = federation.messages(url_of(federation, "plain"))
    assert json.loads(arrived["MessageAttributes"]["x-qpid"]["StringValue"])["trace"] == ["FAR", "THERE"]


def test_what_a_stranger_or_who_may_not_sends_over_a_link_is_a_dead_letter(federation: Surroundings) -> None:
    ask(op="bind", exchange="amq.fanout", queue="orders")
    for peer, reason in (
        (Peer(tag="THERE", account=ACCOUNT, region=REGION), f"NoPeer: sent by '{SENDER}', which is no peer's role"),
        (
            Peer(tag="THERE", account=ACCOUNT, region=REGION, senders=(SENDER,), pushes=("events",)),
            "NotPermitted: THERE may not push to amq.fanout: its peer rule here says events",
        ),
    ):
        know(federation, peer)
        forget()
        send_fifo(federation, "peers.fifo", reason, group=reason[:6], x_qpid='{"exchange": "amq.fanout"}')
        event = federation.event(url_of(federation, "peers.fifo"))
        assert exchange.handler(event, CONTEXT) == {"batchItemFailures": []}
        assert letters(federation)[reason] == reason
    assert federation.messages(url_of(federation, "plain")) == []


def test_a_link_is_tried_and_a_tick_armed(federation: Surroundings) -> None:
    endpoint = asdict(
        Endpoint(region=REGION, account=ACCOUNT, control_queue_url=url_of(federation, "peer-control.fifo"))
    )
    ask(op="link_add", link={"name": "link", "peer": "THERE", "endpoints": [endpoint]})
    [said] = federation.messages(url_of(federation, "peer-control.fifo"))
    assert decode_control(said["Body"]) == Hello(link="link", sender=address(federation, "HERE"))
    counts = federation.sqs.get_queue_attributes(QueueUrl=federation.timeouts_url, AttributeNames=["All"])["Attributes"]
    assert int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesDelayed"]) == 1
