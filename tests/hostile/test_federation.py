"""Whatever publishers, peers and operators send: routed, or a dead letter with its reason; and the site goes on."""

import base64
import json
import zlib
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sluice.codec import Format, encode
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.dynamic.ops import MAX_SNAPSHOT_BYTES, read_snapshot
from sluice.federation.links.links import Bridge
from sluice.federation.links.registry import REGISTRY
from sluice.federation.matching.bindings import CHANGE, RoutingTable, SiteBindings, build_replica
from sluice.federation.operations import OPERATIONS
from sluice.message import Value
from sluice.splitting.filters.values import Filter
from tests.federation_fakes import World
from tests.hostile.events import record
from tests.hostile.federation_entries import (
    FANOUT,
    TOPIC,
    Links,
    asked,
    control,
    crossing,
    message,
    metadata,
    queued,
    sites,
    topology,
)
from tests.hostile.hostile_values import any_texts, attributes, bent, documents, spelled, sqs_texts
from tests.hostile.limits import MIB, told, within

ADDRESS = msgspec.to_builtins(World(["THERE"])["THERE"].address)
OPTIONS: dict[str, Any] = {
    "dest_key": "k",
    "retention_s": 60,
    "rate": 5,
    "filter": Filter(attributes=(("a", "^b"),), any_of=("a: b", "c"), jq=".Body"),
}
BRIDGE = json.loads(encode(Bridge(name="r", link="l", src=FANOUT, dest=FANOUT, **OPTIONS)))
SAID: dict[str, Any] = {
    "exchange": TOPIC,
    "key": "a.b",
    "trace": ["THERE"],
    "id": "THERE.01HF7YAT000000000000000000",
    "published": 1,
    "stamped": 1,
    "ttl": 10**15,
    "headers": {"h": 1, "b": {"base64": "AA=="}, "v": None},
    "overflow": {"o": ["String", "text"]},
}
OPS = [
    {"op": "wanted", "number": 1, "sequence": 0, "digest": "d", "excludes": ["A"], "ready": {}, "heard": [0, 0]},
    {"op": "bind", "sequence": 1, "origin": "A", "path": ["A"], "hops_left": 1, "outages": 0, "want": ["k", ""]},
    {"op": "unbind", "sequence": 1, "origin": "A", "want": None},
    {"op": "snapshot", "sequence": 1, "part": 0, "parts": 1, "data": ""},
    {"op": "carried", "number": 1, "senders": {"A": ["B"]}, "asks": True},
    {"op": "ask", "number": 1},
]
OF_ROUTE = {"exchange": FANOUT, "bridge": "r", "epoch": 1}
CONTROLS: list[dict[str, Any]] = [
    {"op": "hello", "link": "to-HERE", "sender": ADDRESS, "pulls": [BRIDGE], "draining": False, "served": False},
    {"op": "answer", "link": "to-THERE", "sender": ADDRESS, "exchanges": {FANOUT: "fanout"}, "bridges": {"r": "up"}},
    {"op": "refused", "link": "to-THERE", "sender": ADDRESS, "reason": "no"},
    {"op": "parting", "link": "to-HERE", "sender": ADDRESS},
    *({"op": "dynamic", "link": "to-HERE", "sender": ADDRESS, "said": op | OF_ROUTE} for op in OPS),
]
ENDPOINT = {"region": "r", "account": "1", "control_queue_url": "https://sqs.P/control.fifo"}
ASKED: list[dict[str, Any]] = [
    *({"op": op} for op in ("site", "queues", "bindings", "paths", "tick", "sweep")),
    {"op": "bindings", "exchange": TOPIC},
    {"op": "redrive", "name": "route@THERE"},
    {"op": "exchange_add", "name": "e", "type": "topic", "alternate": FANOUT},
    {"op": "exchange_del", "name": TOPIC},
    {"op": "bind", "exchange": "amq.match", "queue": "orders", "key": "k", "arguments": {"x-match": "all", "a": 1}},
    {"op": "bind", "exchange": TOPIC, "queue": "orders", "key": "k", "arguments": {"a": 1}, "replaces": True},
    {"op": "unbind", "exchange": TOPIC, "queue": "orders", "key": "k"},
    {"op": "peer_add", "peer": {"tag": "P", "account": "123456789012", "region": "eu-west-1", "senders": ["AROAP"]}},
    {"op": "peer_del", "name": "THERE"},
    {"op": "link_add", "link": {"name": "l", "peer": "P", "endpoints": [ENDPOINT], "durable": True}},
    {"op": "link_del", "name": "to-HERE@THERE"},
    {"op": "link_tell", "name": "to-HERE@THERE", "command": "pause"},
    {"op": "bridge_add", "bridge": BRIDGE},
    {"op": "bridge_change", "bridge": BRIDGE},
    {"op": "bridge_del", "name": "route@THERE", "del_empty_link": True},
    {"op": "bridge_tell", "name": "route@THERE", "command": "pause"},
    {"op": "outage", "link": "to-HERE@THERE", "error": "e", "refused": True},
    {"op": "gone", "copies": {"bound": 3}},
]
FILE: dict[str, Any] = {
    "sites": {
        "HERE": {
            "at": "eu-west-1",
            "peers": [{"tag": "THERE", "queues": ["*"]}, {"tag": "P", "place": {"account": "1", "region": "r"}}],
            "exchanges": [{"name": "e", "type": "topic", "alternate": FANOUT}],
            "bindings": [{"exchange": "amq.match", "queue": "q", "arguments": {"x-match": "all", "a": 1.5, "b": None}}],
            "links": [{"name": "l", "peer": "THERE", "access": {"endpoints": [ENDPOINT], "role_arn": "a"}}],
            "routes": [BRIDGE],
        },
        "THERE": {"at": "000000000001/us-east-1"},
    }
}
BOMB_BYTES = 1_024 * MIB
GREATEST = MIB - 2_000  # what leaves room for a reason
REFUSALS = ("Malformed: ", "TooLarge: ", "UnknownExchange: ")


def fate(said: str) -> bool:
    return said.startswith(("to ", "dropped", *(f"dead letter: {kind}" for kind in REFUSALS)))


@given(attributes("exchange", "routing-key", "x-qpid", "sluice-reason"), sqs_texts.filter(bool))
def test_a_message_is_routed_or_a_dead_letter(given_: Any, body: str) -> None:
    assert fate(told(lambda given: message(body, given), given_))
    assert told(crossing, given_).startswith(("over", "dropped", *(f"dead letter: {kind}" for kind in REFUSALS)))


@given(st.sampled_from([FANOUT, TOPIC, "amq.match"]), attributes("a", "b"))
def test_what_is_routed_keeps_all_that_the_sender_gave_it(exchange: str, given_: Any) -> None:
    own = dict(list(given_.items())[:9]) | {"exchange": Value("String", exchange)}
    assert told(lambda given: message("b", given), own) == "to bound, bridge.fifo"


@given(st.one_of(spelled(bent(SAID)), spelled(documents), sqs_texts.filter(bool)))
def test_what_a_message_says_of_itself_is_read_or_a_dead_letter(text: str) -> None:
    believed, _, claimed = told(metadata, text).partition("; else ")
    assert fate(believed.removeprefix("trusted "))
    assert not claimed or fate(claimed)


@given(st.data())
def test_what_a_peer_says_is_heard_or_a_dead_letter_and_the_site_goes_on(data: st.DataObject) -> None:
    well = data.draw(st.sampled_from(CONTROLS))
    whole = {"kind": "control", "version": 1, "value": data.draw(bent(well))}
    body = data.draw(st.one_of(spelled(st.just(whole)), spelled(bent(whole))))
    assert told(control, body).startswith(("heard", "dead letter: Malformed: "))


@given(st.data())
def test_what_an_operator_asks_is_done_or_refused(data: st.DataObject) -> None:
    request = data.draw(bent(data.draw(st.sampled_from(ASKED)), st.one_of(documents)))
    if isinstance(request, dict | list):
        assert told(asked, request).startswith(("result", "refused: "))
    text = data.draw(spelled(st.just(request)))
    assert told(queued, text).startswith(("done", "dead letter: Malformed: "))


def test_every_operation_is_among_those_that_are_bent() -> None:
    known = {arg.__struct_config__.tag for arg in get_args(OPERATIONS)}
    assert {each["op"] for each in ASKED} == known


def test_of_a_batch_of_a_peer_only_what_is_hostile_is_a_dead_letter() -> None:
    """Of one group, as all of a link is: what follows isn't held back for it."""
    world = sites()
    well = {"kind": "control", "version": 1, "value": {"op": "hello", "link": "to-HERE", "sender": ADDRESS}}
    bodies = [json.dumps(well), "[" * 100_000, json.dumps(well | {"version": 9}), json.dumps(well)]
    said = Links(world["HERE"]).receive(*bodies)
    assert [each.partition(":")[0] for each in said] == ["dead letter", "dead letter"]
    told_ = [json.loads(body)["value"]["op"] for _, body in world["HERE"].peers.told]
    assert told_.count("answer") == 3  # one of the first hello of all


# Bombs


def bomb(size: int) -> bytes:
    """So many zeros, a thousand times smaller: made of one mebibyte that is said again and again."""
    packer = zlib.compressobj()
    head = packer.compress(b"\0" * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(b"\0" * MIB) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + again * (size // MIB - 1)


def test_a_snapshot_that_unpacks_to_a_gibibyte_is_refused_within_its_limit() -> None:
    text = base64.b64encode(bomb(BOMB_BYTES)).decode()
    limit = 3 * MAX_SNAPSHOT_BYTES // MIB

    def read() -> None:
        with pytest.raises(Malformed, match="cut short, or too large"):
            read_snapshot([text])

    within(limit, read)


def test_a_document_that_unpacks_to_a_gibibyte_is_refused_within_its_limit() -> None:
    packed = bomb(BOMB_BYTES)

    def read() -> None:
        with pytest.raises(BadSnapshot, match="cut short, or too large"):
            Format(kind="k", version=1, type=dict, max_bytes=8 * MIB).unpack(packed)

    within(32, read)


READS = {
    "registry": REGISTRY.unpack,
    "change": CHANGE.unpack,
    "bindings": partial(build_replica, make=SiteBindings),
    "table": partial(build_replica, make=RoutingTable),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@given(content=st.one_of(st.binary(), spelled(documents).map(lambda text: zlib.compress(text.encode()))))
def test_a_document_that_is_damaged_is_refused(read: Any, content: bytes) -> None:
    with pytest.raises(BadSnapshot):
        read(content)


@given(st.lists(st.one_of(any_texts, st.binary().map(lambda each: base64.b64encode(each).decode())), max_size=3))
def test_a_snapshot_that_is_damaged_is_refused(parts: list[str]) -> None:
    with pytest.raises(Malformed):
        read_snapshot(parts)


@pytest.mark.parametrize("body", ["[" * MIB, '{"a":' * (MIB // 5), " " * MIB, '"' * MIB, "{" + '"a":1,' * 150_000])
def test_what_a_peer_says_in_a_mebibyte_takes_bounded_memory(body: str) -> None:
    assert within(32, lambda: told(control, body[:GREATEST])).startswith("dead letter: Malformed: ")


@pytest.mark.parametrize("body", ["[" * GREATEST, '{"headers":{' + '"a":1,' * 150_000])
def test_metadata_of_a_mebibyte_takes_bounded_memory(body: str) -> None:
    given_ = {"x-qpid": Value("String", body)}
    assert record("b", given_, queue="ingress")["messageAttributes"].keys() == {"x-qpid"}
    assert within(32, lambda: told(lambda given: message("b", given), given_)).startswith("dead letter: Malformed: ")


@given(
    st.one_of(bent(FILE).map(yaml.safe_dump), spelled(bent(FILE)), any_texts, st.text("&*!<:-[]{}|>'\"%@ \n\tsite01"))
)
def test_a_topology_file_is_taken_or_the_place_is_named(text: str) -> None:
    said = told(topology, text.encode(errors="surrogatepass"))
    assert said.startswith(("sites: ", "refused: line ", "refused: topology.yaml: ")), said


def test_a_topology_file_of_any_size_takes_no_memory() -> None:
    content = b"sites: {}\n" * MIB
    refused = "refused: topology.yaml: has more than 1,048,576 bytes"
    assert within(4, lambda: told(topology, content)) == refused
