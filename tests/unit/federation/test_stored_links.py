"""What sites have stored of links, and what they tell each other, as files: this program reads it, and writes the same.

A test that fails here says that a format has changed. Then its version goes up, the file of the old version stays, with
a test that it is still read: sites are deployed one after the other.
"""

import zlib
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from sluice.codec import Format, encode
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.declared import DECLARED, BindingDeclaration, Declared
from sluice.federation.dynamic.ops import (
    AdvertisedRoute,
    Bind,
    BindingAdvertisement,
    DynamicOp,
    RequestSnapshot,
    RouteHello,
    SnapshotPart,
    Unbind,
    compute_digest,
    decode_op,
    read_snapshot,
)
from sluice.federation.dynamic.state import (
    ROUTES,
    DynamicRoutes,
    FormerRoute,
    PartialSnapshot,
    PulledRoute,
    ServedRoute,
)
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.messages import (
    ControlMessage,
    DynamicMessage,
    Hello,
    HelloAnswer,
    HelloRefusal,
    LinkClosed,
    decode_control,
    encode_control,
)
from sluice.federation.links.registry import REGISTRY, BridgeRecord, LinkRecord, Registry
from sluice.federation.links.states import Intent, LinkState, LinkStatus
from sluice.federation.links.watch import WATCH, QueueWatch, Repairs, SiteWatch
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.typed_values import Base64
from sluice.federation.operations import OPERATIONS, FederationOperation, ReportFailingQueues, ReportOutage, Tick
from sluice.operations import parse_request

STORED = Path(__file__).parents[2] / "stored" / "federation"

EAST = Address(
    tag="EAST",
    region="us-east-1",
    account="000000000001",
    control_queue_url="https://sqs.us-east-1.amazonaws.com/000000000001/control.fifo",
    ingress_url="https://sqs.us-east-1.amazonaws.com/000000000001/ingress",
    fifo_ingress_url="https://sqs.us-east-1.amazonaws.com/000000000001/ingress.fifo",
    role_arn="arn:aws:iam::000000000001:role/peers",
    external_id="sluice",
    sqs_url="https://vpce-1.sqs.us-east-1.vpce.amazonaws.com",
)
LINK = Link(
    name="EAST",
    peer="EAST",
    endpoints=(
        Endpoint(
            region="us-east-1",
            account="000000000001",
            control_queue_url="https://sqs.us-east-1.amazonaws.com/000000000001/control.fifo",
            sqs_url="https://vpce-1.sqs.us-east-1.vpce.amazonaws.com",
        ),
    ),
    role_arn="arn:aws:iam::000000000001:role/peers",
    external_id="sluice",
    durable=False,
)
PULL = Bridge(
    name="from-EAST:amq.topic:amq.fanout:eu.#",
    link="EAST",
    src="amq.topic",
    dest="amq.fanout",
    key="eu.#",
    tag="OTHER",
    excludes=frozenset({"WEST", "NORTH"}),
    durable=False,
    sync=3,
    credit=7,
    max_hops=2,
    fifo=False,
)
DYNAMIC = Bridge(
    name="dynamic-from-EAST:amq.topic", link="EAST", src="amq.topic", dest="amq.topic", dynamic=True, expires_s=600
)
PUSH = Bridge(
    name="queue-to-EAST:orders:amq.direct",
    link="EAST",
    src="orders",
    dest="amq.direct",
    src_is_queue=True,
    src_is_local=True,
)
LINKS = Registry(
    here="WEST",
    links={
        "EAST": LinkRecord(
            link=LINK,
            status=LinkStatus(
                state=LinkState.STALLED,
                endpoint=1,
                failures=2,
                due_at_ms=1_700_000_000_001,
                carrying_since_ms=1_700_000_000_002,
                heartbeat_sent_ms=1_700_000_000_003,
                last_answer_ms=1_700_000_000_004,
                last_forward_ms=1_700_000_000_005,
                last_error="AccessDenied: ä",
                draining=True,
            ),
            served=True,
            declared=True,
            address=EAST,
            exchanges={"amq.topic": "topic"},
            hello_due=True,
            remote={PULL.name: "Operational"},
        ),
        "SOUTH": LinkRecord(link=Link(name="SOUTH", peer="SOUTH", endpoints=())),
    },
    bridges={
        PUSH.name: BridgeRecord(
            bridge=PUSH,
            served=True,
            declared=True,
            queue="stack-orders-123",
            mapping="0a1b2c3d-mapping",
            on=True,
            bound=True,
            intent=Intent.CLOSED,
            empty_since_ms=1_700_000_000_006,
            error="no such queue: stack-orders-123",
        ),
        PULL.name: BridgeRecord(bridge=PULL),
    },
)
PLAIN, TYPED = (
    BindingAdvertisement.from_binding("a.#"),
    BindingAdvertisement.from_binding("", {"x-match": "all", "n": 1.0, "raw": b"\x00\xff", "void": None, "on": True}),
)
REACH = AdvertisedRoute(path=("FAR", "EAST"), hops_left=6, outages=1, bindings=frozenset({PLAIN, TYPED}))
DYNAMIC_ROUTES = {
    "amq.topic": DynamicRoutes(
        here="WEST",
        exchange="amq.topic",
        local=frozenset({PLAIN, TYPED}),
        pulls={
            "pull": PulledRoute(
                bridge="pull",
                link="EAST",
                peer="EAST",
                max_hops=8,
                epoch=1_700_000_000_007,
                up=False,
                sequence=12,
                number=34,
                last_request=(1_700_000_000_008, 5),
            )
        },
        served={
            "pull@EAST": ServedRoute(
                bridge="pull",
                link="link@EAST",
                peer="EAST",
                tag="WEST",
                epoch=1_700_000_000_009,
                max_hops=7,
                up=False,
                down_since_ms=1_700_000_000_010,
                expires_ms=600_000,
                number=3,
                advertised_routes={"FAR": REACH},
                version=(1_700_000_000_011, 2),
                hello=(1_700_000_000_011, 4),
                is_requested=True,
                partial=PartialSnapshot(version=(1_700_000_000_011, 3), parts=("eJw=", None)),
            )
        },
        former={"GONE": FormerRoute(bridge="pull@EAST", bindings=frozenset({PLAIN}), heartbeats=1)},
    )
}
DECLARATION = Declared(
    exchanges=(Exchange(name="events", type=ExchangeType.TOPIC, alternate="amq.fanout"),),
    bindings=(
        BindingDeclaration(
            exchange="amq.match",
            queue="orders",
            key="k",
            arguments={"x-match": "any", "n": 2, "f": 2.0, "t": True, "v": None, "b": Base64(base64=b"\x00")},
        ),
    ),
    links=(LINK,),
    routes=(PUSH,),
)
WATCHED = SiteWatch(
    queues={
        "sluice-bridge-0123": QueueWatch(
            messages=7, waiting_since_ms=1_700_000_000_017, undelivered=3, none_found_since_ms=1_700_000_000_014
        ),
        "sluice-queue-orders": QueueWatch(missing_since_ms=1_700_000_000_015, unbound=True),
    },
    repairs={PULL.name: Repairs(number=2, last="queue", last_ms=1_700_000_000_016, lost_messages=17)},
)
CONTROLS: dict[str, ControlMessage] = {
    "hello": Hello(
        link="EAST", sender=EAST, served=True, draining=True, pulls=(PULL, DYNAMIC), paused=frozenset({PULL.name})
    ),
    "answer": HelloAnswer(link="EAST", sender=EAST, exchanges={"amq.topic": "topic"}, bridges={"b": "Failed: no"}),
    "refused": HelloRefusal(link="EAST", sender=EAST, reason="two sites have this tag"),
    "parting": LinkClosed(link="EAST", sender=EAST),
    "dynamic": DynamicMessage(
        link="EAST", sender=EAST, op=Raw(b'{"op":"ask","exchange":"amq.topic","bridge":"pull","epoch":1,"number":2}')
    ),
}
OF_PULL: dict[str, Any] = {"exchange": "amq.topic", "bridge": "pull", "epoch": 1_700_000_000_012}
OPS: dict[str, DynamicOp] = {
    "wanted": RouteHello(
        **OF_PULL,
        number=5,
        sequence=6,
        digest="0123456789abcdef0123456789abcdef",
    ),
    "bind": Bind(**OF_PULL, sequence=8, origin="FAR", path=("FAR", "EAST"), hops_left=6, outages=1, binding=TYPED),
    "bind_origin": Bind(**OF_PULL, sequence=9, origin="EAST", path=("EAST",), hops_left=8, outages=0, binding=None),
    "unbind": Unbind(**OF_PULL, sequence=10, origin="FAR", binding=PLAIN),
    "snapshot": SnapshotPart(**OF_PULL, sequence=11, part=1, parts=3, data="eJyrVsrOzEtRslIqT8wrKVbSUSpLLSrOzM9T"),
    "ask": RequestSnapshot(**OF_PULL, number=13),
}
TICKS: dict[str, FederationOperation] = {
    "outage": ReportOutage(link="EAST", error="AccessDenied", refused=True, at_ms=1_700_000_000_014),
    "gone": ReportFailingQueues(copies={"sluice-bridge-0123": 3, "sluice-queue-orders": 0}),
    "tick": Tick(),
}


def file(name: str) -> str:
    return (STORED / f"{name}.json").read_text(encoding="utf-8").removesuffix("\n")


@pytest.mark.parametrize(
    ("name", "format_", "value"),
    [
        ("links", REGISTRY, LINKS),
        ("dynamic_routes", ROUTES, DYNAMIC_ROUTES),
        ("declared", DECLARED, DECLARATION),
        ("watch", WATCH, WATCHED),
    ],
)
def test_a_stored_kind_is_read_and_written_as_it_was(name: str, format_: Format[object], value: object) -> None:
    assert format_.from_text(file(name)) == value
    assert format_.text(value) == file(name)
    assert format_.unpack(zlib.compress(file(name).encode())) == value


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_message_is_read_and_written_as_it_was(name: str) -> None:
    assert decode_control(file(f"control_{name}")) == CONTROLS[name]
    assert encode_control(CONTROLS[name]) == file(f"control_{name}")


@pytest.mark.parametrize("name", OPS)
def test_an_op_of_dynamic_routes_is_read_and_written_as_it_was(name: str) -> None:
    assert decode_op(file(f"op_{name}")) == OPS[name]
    assert encode(OPS[name]).decode() == file(f"op_{name}")


@pytest.mark.parametrize("name", TICKS)
def test_what_waits_in_the_ticks_queue_is_read_and_written_as_it_was(name: str) -> None:
    assert parse_request(file(f"operation_{name}"), OPERATIONS) == TICKS[name]
    assert encode(TICKS[name]).decode() == file(f"operation_{name}")


def test_a_snapshot_is_read_and_its_digest_is_what_it_was() -> None:
    # Its bytes are the compressor's; only what they say is a format.
    assert read_snapshot([file("snapshot")]) == {"FAR": REACH}
    assert compute_digest({"FAR": REACH}) == "f3d40f748de5cea543198a1047413355"


def test_another_version_stops_the_reader_and_names_both() -> None:
    later = file("links").replace('"version":1', '"version":2')
    with pytest.raises(BadSnapshot, match="links of version 2: this program reads links of 1"):
        REGISTRY.from_text(later)
    with pytest.raises(Malformed, match="control of version 2: this program reads control of 1"):
        decode_control(file("control_hello").replace('"version":1', '"version":2', 1))


def test_every_file_has_its_test() -> None:
    names = {"links", "dynamic_routes", "declared", "watch", "snapshot"}
    names |= {f"control_{name}" for name in CONTROLS} | {f"op_{name}" for name in OPS}
    names |= {f"operation_{name}" for name in TICKS}
    of_bindings = ("bindings", "x_qpid_")  # their test is test_stored_bindings
    assert {path.stem for path in STORED.iterdir() if not path.stem.startswith(of_bindings)} == names
