"""The registry and control messages as JSON and back; whatever else comes is Malformed."""

import json
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.codec import decode, encode
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.messages import (
    MAX_PULLS,
    Hello,
    HelloAnswer,
    HelloRefusal,
    LinkClosed,
    LinkMessage,
    decode_control,
    encode_control,
)
from sluice.federation.links.registry import REGISTRY, BridgeRecord, LinkRecord, Registry
from sluice.federation.links.states import Intent, LinkState, LinkStatus

TEXTS = st.text(max_size=8)
NAMES = st.text(min_size=1, max_size=5)
MAYBE = st.none() | TEXTS
NUMBERS = st.integers(min_value=0, max_value=1 << 60)
ADDRESSES = st.builds(
    Address,
    tag=TEXTS,
    region=TEXTS,
    account=TEXTS,
    control_queue_url=TEXTS,
    ingress_url=TEXTS,
    fifo_ingress_url=TEXTS,
    role_arn=MAYBE,
    external_id=MAYBE,
    sqs_url=MAYBE,
)
ENDPOINTS = st.builds(Endpoint, region=TEXTS, account=TEXTS, control_queue_url=TEXTS, sqs_url=MAYBE)
LINKS = st.builds(
    Link,
    name=NAMES,
    peer=TEXTS,
    endpoints=st.lists(ENDPOINTS, max_size=3).map(tuple),
    role_arn=MAYBE,
    external_id=MAYBE,
    durable=st.booleans(),
)
BRIDGES = st.builds(
    Bridge,
    name=NAMES,
    link=TEXTS,
    src=TEXTS,
    dest=TEXTS,
    key=TEXTS,
    tag=MAYBE,
    excludes=st.frozensets(TEXTS, max_size=3),
    src_is_queue=st.booleans(),
    src_is_local=st.booleans(),
    dynamic=st.booleans(),
    sync=NUMBERS,
    credit=NUMBERS,
    max_hops=NUMBERS,
    fifo=st.booleans(),
)
STATUSES = st.builds(
    LinkStatus,
    state=st.sampled_from(list(LinkState)),
    endpoint=NUMBERS,
    failures=NUMBERS,
    due_at_ms=NUMBERS,
    heartbeat_sent_ms=st.none() | NUMBERS,
    last_error=MAYBE,
    draining=st.booleans(),
)
TEXTS_BY_NAME = st.dictionaries(TEXTS, TEXTS, max_size=3)
LINK_RECORDS = st.builds(
    LinkRecord,
    link=LINKS,
    status=STATUSES,
    served=st.booleans(),
    declared=st.booleans(),
    address=st.none() | ADDRESSES,
    exchanges=TEXTS_BY_NAME,
    hello_due=st.booleans(),
    remote=TEXTS_BY_NAME,
)
BRIDGE_RECORDS = st.builds(
    BridgeRecord,
    bridge=BRIDGES,
    served=st.booleans(),
    queue=MAYBE,
    mapping=MAYBE,
    on=st.booleans(),
    bound=st.booleans(),
    intent=st.sampled_from(Intent),
    empty_since_ms=st.none() | NUMBERS,
    error=MAYBE,
)
REGISTRIES = st.builds(
    Registry,
    here=TEXTS,
    links=st.lists(LINK_RECORDS, max_size=3).map(lambda each: {record.link.name: record for record in each}),
    bridges=st.lists(BRIDGE_RECORDS, max_size=3).map(lambda each: {record.bridge.name: record for record in each}),
)
CONTROLS: st.SearchStrategy[LinkMessage] = st.one_of(
    st.builds(
        Hello,
        link=TEXTS,
        sender=ADDRESSES,
        served=st.booleans(),
        draining=st.booleans(),
        pulls=st.lists(BRIDGES, max_size=3).map(tuple),
    ),
    st.builds(HelloAnswer, link=TEXTS, sender=ADDRESSES, exchanges=TEXTS_BY_NAME, bridges=TEXTS_BY_NAME),
    st.builds(HelloRefusal, link=TEXTS, sender=ADDRESSES, reason=TEXTS),
    st.builds(LinkClosed, link=TEXTS, sender=ADDRESSES),
)
ADDRESS = Address(tag="A", region="r", account="1", control_queue_url="c", ingress_url="i", fifo_ingress_url="f")
BRIDGE = Bridge(name="b", link="l", src="s", dest="d")
SAID: dict[str, Any] = json.loads(encode_control(Hello(link="l", sender=ADDRESS, pulls=(BRIDGE,))))
HELLO: dict[str, Any] = SAID["value"]
ANSWER: dict[str, Any] = json.loads(encode_control(HelloAnswer(link="l", sender=ADDRESS, exchanges={}, bridges={})))[
    "value"
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(REGISTRIES)
def test_a_registry_comes_back(registry: Registry) -> None:
    assert REGISTRY.unpack(REGISTRY.pack(registry)) == registry


@given(REGISTRIES)
def test_equal_registries_give_equal_bytes(registry: Registry) -> None:
    assert REGISTRY.pack(REGISTRY.unpack(REGISTRY.pack(registry))) == REGISTRY.pack(registry)


@given(CONTROLS)
def test_a_control_message_comes_back(control: LinkMessage) -> None:
    assert decode_control(encode_control(control)) == control


@given(BRIDGES)
def test_a_bridge_comes_back(bridge: Bridge) -> None:
    assert decode(encode(bridge), Bridge, of="a bridge") == bridge


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kind": "links", "version": 2, "value": {"here": "A"}}',
        b'{"kind": "links", "version": 1, "value": {"here": "A", "links": {"l": {}}}}',
        b"\xff",
        b"null",
    ],
)
def test_a_registry_that_cannot_be_read_says_so(text: bytes) -> None:
    for stored in (text, zlib.compress(text)):
        with pytest.raises(BadSnapshot):
            REGISTRY.unpack(stored)


def refused(body: str) -> str:
    with pytest.raises(Malformed) as caught:
        decode_control(body)
    return str(caught.value)


def said(value: dict[str, Any]) -> str:
    return json.dumps(SAID | {"value": value})


PULL: dict[str, Any] = HELLO["pulls"][0]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"op": "dance"}, "'dance' - at `$.op`"),
        ({"op": None}, "$.op"),
        ({"op": ["hello"]}, "$.op"),
        ({"op": {"a": 1}}, "$.op"),
        ({"link": 5}, "$.link"),
        ({"sender": None}, "$.sender"),
        ({"sender": "A"}, "$.sender"),
        ({"sender": {}}, "missing required field `tag` - at `$.sender`"),
        ({"sender": {**HELLO["sender"], "tag": True}}, "$.sender.tag"),
        ({"sender": {**HELLO["sender"], "tag": None}}, "$.sender.tag"),
        ({"sender": {**HELLO["sender"], "surprise": 1}}, "unknown field `surprise` - at `$.sender`"),
        ({"surprise": 1}, "unknown field `surprise`"),
        ({"served": "yes"}, "$.served"),
        ({"pulls": None}, "$.pulls"),
        ({"pulls": {}}, "$.pulls"),
        ({"pulls": [5]}, "$.pulls[0]"),
        ({"pulls": [PULL] * (MAX_PULLS + 1)}, "length <= 1000 - at `$.pulls`"),
        ({"pulls": [{}]}, "missing required field `src` - at `$.pulls[0]`"),
        ({"pulls": [{**PULL, "sync": True}]}, "$.pulls[0].sync"),
        ({"pulls": [{**PULL, "sync": 1.5}]}, "$.pulls[0].sync"),
        ({"pulls": [{**PULL, "max_hops": "8"}]}, "$.pulls[0].max_hops"),
        ({"pulls": [{**PULL, "fifo": 1}]}, "$.pulls[0].fifo"),
        ({"pulls": [{**PULL, "key": ["k"]}]}, "$.pulls[0].key"),
        ({"pulls": [{**PULL, "tag": 0}]}, "$.pulls[0].tag"),
        ({"pulls": [{**PULL, "excludes": "A"}]}, "$.pulls[0].excludes"),
        ({"pulls": [{**PULL, "excludes": [["A"]]}]}, "$.pulls[0].excludes"),
        ({"pulls": [{**PULL, "__class__": "x"}]}, "unknown field `__class__`"),
    ],
)
def test_a_hostile_hello_is_malformed_and_the_text_names_the_place(changes: dict[str, Any], place: str) -> None:
    assert place in refused(said(HELLO | changes))


def test_a_message_of_another_version_says_which_it_is() -> None:
    text = refused(json.dumps(SAID | {"version": 2}))
    assert text == "control of version 2: this program reads control of 1"


@pytest.mark.parametrize("changes", [{"exchanges": []}, {"exchanges": {"a": 1}}, {"bridges": None}])
def test_a_hostile_answer_is_malformed(changes: dict[str, Any]) -> None:
    assert next(iter(changes)) in refused(said(ANSWER | changes))


@pytest.mark.parametrize(
    "body", ["", "5", "[]", "null", '"hello"', "{", "[" * 100_000, '{"a":' * 100_000, "1" * 5_000, '{"op": "hello"}']
)
def test_what_is_no_control_message_is_malformed(body: str) -> None:
    assert refused(body)


FIELDS = sorted(HELLO)
PULL_FIELDS = sorted(PULL)


def test_what_is_kept_unread_has_a_limit_of_depth_whatever_room_the_stack_has() -> None:
    message = said({"op": "dynamic", "link": "to-HERE", "sender": HELLO["sender"], "said": "DEEP"})
    deep = message.replace('"DEEP"', "[" * 500 + "]" * 500)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 10_000)
    try:
        assert "nested too deep, more than 100 levels" in refused(deep)
    finally:
        sys.setrecursionlimit(limit)


@given(field=st.sampled_from(FIELDS), pull_field=st.sampled_from(PULL_FIELDS), value=JSON, inside=st.booleans())
def test_whatever_a_field_holds_it_is_taken_or_malformed(
    *, field: str, pull_field: str, value: object, inside: bool
) -> None:
    changes = {"pulls": [{**PULL, pull_field: value}]} if inside else {field: value}
    try:
        control = decode_control(said(HELLO | changes))
    except Malformed:
        return
    assert decode_control(encode_control(control)) == control


def test_a_newer_field_is_not_taken_for_less() -> None:
    """An older site can't do what a bridge with a new field asks for: it says so."""
    pull = {**PULL, "name": "new", "weather": 5}
    assert "unknown field `weather`" in refused(said(HELLO | {"pulls": [pull]}))
