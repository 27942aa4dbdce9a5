"""Dynamic routes: what is told, what is taken, and what is stored."""

import base64
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.codec import encode
from sluice.errors import BadSnapshot, Malformed
from sluice.federation.dynamic import steps
from sluice.federation.dynamic.ops import (
    AdvertisedRoute,
    Bind,
    BindingAdvertisement,
    BindingAdvertisements,
    DynamicOp,
    RequestSnapshot,
    RouteHello,
    SnapshotPart,
    Unbind,
    build_bindings,
    compute_digest,
    decode_op,
    encode_snapshot,
    read_snapshot,
)
from sluice.federation.dynamic.paths import (
    build_advertisement,
    choose_active_bridges,
    choose_bridges_in_use,
    collect_advertised_bindings,
    list_paths,
)
from sluice.federation.dynamic.state import (
    ROUTES,
    DynamicEvent,
    DynamicRoutes,
    DynamicStep,
    IgnoredReason,
    PulledRoute,
    ServedRoute,
)
from sluice.federation.dynamic.steps import (
    add_pull,
    add_served,
    handle_heartbeat,
    receive_op,
    remove_served,
    set_leads,
    set_link_up,
    set_local_bindings,
    step,
)
from sluice.federation.matching.bindings import Destination, RoutingTable
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.indexes import Publication
from tests.bindings import bound as of_site

EXCHANGE = "amq.topic"
NAME = "pull@D"


def pull(*, max_hops: int = 8, epoch: int = 1, up: bool = True) -> PulledRoute:
    return PulledRoute(bridge="pull", link="to-S", peer="S", max_hops=max_hops, epoch=epoch, up=up)


def served(*, peer: str = "D", epoch: int = 1, expires_ms: int | None = None) -> ServedRoute:
    return ServedRoute(bridge="pull", link=f"of-{peer}", peer=peer, tag="S", epoch=epoch, expires_ms=expires_ms)


def destination(*events: Any) -> DynamicRoutes:
    return after(DynamicRoutes(here="D", exchange=EXCHANGE), add_pull(pull()), *events).routes


def source(*ops: DynamicOp) -> DynamicRoutes:
    start = after(DynamicRoutes(here="S", exchange=EXCHANGE), add_served(served())).routes
    return after(start, *(receive_op("D", op) for op in ops)).routes


def after(routes: DynamicRoutes, *events: Any) -> DynamicStep:
    taken = DynamicStep(routes)
    for event in events:
        taken = step(taken.routes, event)
    return taken


def bound(*queues: tuple[str, BindingAdvertisement]) -> DynamicEvent:
    """What these queues are bound by, as a survey finds it."""
    return set_local_bindings(frozenset(want for _, want in queues))


def ops(taken: DynamicStep) -> list[DynamicOp]:
    return [sending.op for sending in taken.outgoing_ops]


def snapshot(advertised_routes: dict[str, AdvertisedRoute], *, epoch: int = 1, sequence: int = 1) -> list[DynamicOp]:
    parts = encode_snapshot(advertised_routes)
    return [
        SnapshotPart(
            exchange=EXCHANGE, bridge="pull", epoch=epoch, sequence=sequence, part=part, parts=len(parts), data=data
        )
        for part, data in enumerate(parts)
    ]


def bind(key: str, *, sequence: int, epoch: int = 1, path: tuple[str, ...] = ("D",), hops_left: int = 8) -> Bind:
    return Bind(
        exchange=EXCHANGE,
        bridge="pull",
        epoch=epoch,
        sequence=sequence,
        origin=path[0],
        path=path,
        hops_left=hops_left,
        outages=0,
        binding=BindingAdvertisement(key),
    )


def unbind(key: str | None, *, sequence: int, origin: str = "D") -> Unbind:
    want = None if key is None else BindingAdvertisement(key)
    return Unbind(exchange=EXCHANGE, bridge="pull", epoch=1, sequence=sequence, origin=origin, binding=want)


def hello(
    routes: DynamicRoutes, *, number: int, sequence: int = 1, digest: str | None = None, epoch: int = 1
) -> RouteHello:
    found = compute_digest(routes.served[NAME].advertised_routes) if digest is None else digest
    return RouteHello(
        exchange=EXCHANGE,
        bridge="pull",
        epoch=epoch,
        number=number,
        sequence=sequence,
        digest=found,
    )


def keys(routes: DynamicRoutes, name: str = NAME) -> list[str]:
    return sorted(want.key for want in bound_by(routes, name))


def bound_by(routes: DynamicRoutes, name: str = NAME) -> BindingAdvertisements:
    return collect_advertised_bindings(routes, name, choose_bridges_in_use(routes))


BEGUN = snapshot({"D": AdvertisedRoute(path=("D",), hops_left=8, bindings=frozenset({BindingAdvertisement("a")}))})


# What the destination tells


def test_the_first_binding_of_a_key_is_told_and_the_removal_of_the_last() -> None:
    routes = destination()
    told = []
    one, other = ("q1", BindingAdvertisement("k")), ("q2", BindingAdvertisement("k"))
    for event in [bound(one), bound(one, other), bound(other)]:
        taken = step(routes, event)
        routes = taken.routes
        told.append([type(op) for op in ops(taken)])
    assert told == [[Bind], [], []]
    last = ops(step(routes, bound()))
    assert [(type(op), op.sequence) for op in last if isinstance(op, Unbind)] == [(Unbind, 3)]


def test_a_binding_with_other_arguments_is_another() -> None:
    one, other = (
        BindingAdvertisement.from_binding("k", {"x-match": "all", "n": 1}),
        BindingAdvertisement.from_binding("k", {"x-match": "all", "n": True}),
    )
    taken = after(destination(bound(("q1", one))), bound(("q1", one), ("q2", other)))
    assert [op.binding for op in ops(taken) if isinstance(op, Bind)] == [other]


def test_what_was_bound_before_the_route_is_in_the_snapshot_that_the_source_asks_for() -> None:
    want = BindingAdvertisement.from_binding("", {"x-match": "any", "color": "red", "raw": b"\x00", "there": None})
    start = after(DynamicRoutes(here="D", exchange=EXCHANGE), bound(("q", want)), add_pull(pull())).routes
    ask = RequestSnapshot(exchange=EXCHANGE, bridge="pull", epoch=1, number=1)
    parts = [op.data for op in ops(step(start, receive_op("S", ask))) if isinstance(op, SnapshotPart)]
    assert read_snapshot(parts)["D"].bindings == {want}


def test_a_survey_tells_what_has_changed_and_nothing_else() -> None:
    start = destination(bound(("q", BindingAdvertisement("a")), ("q", BindingAdvertisement("b"))))
    taken = step(start, bound(("q2", BindingAdvertisement("b")), ("q", BindingAdvertisement("c"))))
    assert [(type(op), op.binding) for op in ops(taken) if isinstance(op, Bind | Unbind)] == [
        (Unbind, BindingAdvertisement("a")),
        (Bind, BindingAdvertisement("c")),
    ]


def test_many_changes_at_once_are_told_as_a_snapshot() -> None:
    taken = step(destination(), bound(*(("q", BindingAdvertisement(f"key-{n}")) for n in range(1_000))))
    assert [type(op) for op in ops(taken)] == [SnapshotPart]


def test_forty_thousand_bindings_take_at_most_ten_messages() -> None:
    chance = random.Random(5)
    wants = frozenset(BindingAdvertisement(f"orders.{chance.randbytes(12).hex()}.#") for _ in range(40_000))
    ask = RequestSnapshot(exchange=EXCHANGE, bridge="pull", epoch=1, number=1)
    told = [encode(op) for op in ops(after(destination(set_local_bindings(wants)), receive_op("S", ask)))]
    assert len(told) <= 10
    assert max(len(text) for text in told) <= 256 * 1024
    assert len(bound_by(source(*map(decode_op, told)))) == 40_000


def test_over_a_link_that_is_down_nothing_is_told_and_after_it_a_hello_shows_the_change() -> None:
    down = after(destination(), set_link_up("to-S", up=False, now_ms=0), bound(("q", BindingAdvertisement("k"))))
    assert not down.outgoing_ops
    back = ops(step(down.routes, set_link_up("to-S", up=True, now_ms=0)))
    assert [type(op) for op in back] == [RouteHello]
    assert isinstance(back[0], RouteHello)
    assert back[0].sequence == 2


# What the source takes


def test_a_new_bridge_is_asked_for_everything() -> None:
    taken = step(DynamicRoutes(here="S", exchange=EXCHANGE), add_served(served()))
    assert [type(op) for op in ops(taken)] == [RequestSnapshot]


def test_ops_in_order_bind_and_unbind() -> None:
    routes = source(*BEGUN, bind("b", sequence=2), unbind("a", sequence=3))
    assert keys(routes) == ["b"]
    assert keys(after(routes, receive_op("D", unbind(None, sequence=4))).routes) == []


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (bind("b", sequence=1), IgnoredReason.REPLAYED),
        (bind("b", sequence=3), IgnoredReason.GAP),
        (bind("b", sequence=2, epoch=0), IgnoredReason.EPOCH),
        (bind("b", sequence=2, epoch=2), IgnoredReason.EPOCH),
        (bind("b", sequence=2, path=("Z", "S", "D")), IgnoredReason.LOOP),
        (bind("b", sequence=2, path=("Z", "E")), IgnoredReason.MALFORMED),
        (replace(bind("b", sequence=2), bridge="another"), IgnoredReason.UNKNOWN_BRIDGE),
        (replace(bind("b", sequence=2), exchange="another"), IgnoredReason.UNKNOWN_BRIDGE),
        (RequestSnapshot(exchange=EXCHANGE, bridge="pull", epoch=9, number=9), IgnoredReason.UNKNOWN_BRIDGE),
        (BEGUN[0], IgnoredReason.REPLAYED),
    ],
)
def test_an_op_that_cannot_be_taken_is_ignored_and_counted(op: DynamicOp, why: IgnoredReason) -> None:
    taken = step(source(*BEGUN), receive_op("D", op))
    assert taken.ignored is why
    assert keys(taken.routes) == ["a"]


def test_a_peer_cannot_speak_of_a_bridge_of_another() -> None:
    taken = step(source(*BEGUN), receive_op("E", bind("b", sequence=2)))
    assert taken.ignored is IgnoredReason.UNKNOWN_BRIDGE


def test_after_a_gap_one_snapshot_is_asked_for_and_puts_it_right() -> None:
    first = step(source(*BEGUN), receive_op("D", bind("c", sequence=3)))
    assert [type(op) for op in ops(first)] == [RequestSnapshot]
    second = step(first.routes, receive_op("D", bind("d", sequence=4)))
    assert not ops(second)
    complete = {"D": AdvertisedRoute(path=("D",), hops_left=8, bindings=frozenset(map(BindingAdvertisement, "abcd")))}
    right = after(second.routes, *(receive_op("D", op) for op in snapshot(complete, sequence=4)))
    assert keys(right.routes) == ["a", "b", "c", "d"]
    assert keys(after(right.routes, receive_op("D", bind("e", sequence=5))).routes) == ["a", "b", "c", "d", "e"]


def test_a_digest_that_differs_asks_and_one_that_is_the_same_does_not() -> None:
    routes = source(*BEGUN)
    same = step(routes, receive_op("D", hello(routes, number=1)))
    assert not ops(same)
    differs = step(same.routes, receive_op("D", hello(routes, number=2, digest="other")))
    assert [type(op) for op in ops(differs)] == [RequestSnapshot]


def test_a_hello_that_speaks_of_ops_that_never_came_asks() -> None:
    routes = source(*BEGUN)
    assert [type(op) for op in ops(step(routes, receive_op("D", hello(routes, number=1, sequence=9))))] == [
        RequestSnapshot
    ]


def test_a_hello_that_ops_have_overtaken_asks_nothing() -> None:
    routes = source(*BEGUN, bind("b", sequence=2))
    assert not ops(step(routes, receive_op("D", hello(routes, number=1, sequence=1, digest="of then"))))


def test_an_older_hello_is_ignored() -> None:
    routes = source(*BEGUN)
    newer = step(routes, receive_op("D", hello(routes, number=5)))
    older = step(newer.routes, receive_op("D", hello(routes, number=4, digest="other")))
    assert older.ignored is IgnoredReason.REPLAYED
    assert not ops(older)


def test_who_begins_anew_is_asked_and_what_was_bound_stays_until_it_answers() -> None:
    routes = source(*BEGUN)
    anew = step(routes, receive_op("D", hello(routes, number=1, epoch=2)))
    assert [type(op) for op in ops(anew)] == [RequestSnapshot]
    assert keys(anew.routes) == ["a"]
    answer = snapshot({"D": AdvertisedRoute(path=("D",), hops_left=8)}, epoch=2)
    assert keys(after(anew.routes, *(receive_op("D", op) for op in answer)).routes) == []


def test_a_snapshot_counts_when_all_its_parts_are_there_in_whatever_order() -> None:
    chance = random.Random(1)
    many = {BindingAdvertisement(chance.randbytes(100).hex()) for _ in range(6_000)}
    parts = snapshot({"D": AdvertisedRoute(path=("D",), hops_left=8, bindings=frozenset(many))})
    assert len(parts) > 2
    first, *others = [receive_op("D", op) for op in reversed(parts)]
    begun = after(source(), first, first, *others[:-1]).routes
    assert keys(begun) == []
    assert bound_by(after(begun, others[-1]).routes) == many


def test_a_snapshot_that_cannot_be_read_changes_nothing() -> None:
    bad = replace(snapshot({}, sequence=2)[0], data="eJw=")
    taken = step(source(*BEGUN), receive_op("D", bad))
    assert taken.ignored is IgnoredReason.MALFORMED
    assert keys(taken.routes) == ["a"]


def test_a_link_that_is_down_keeps_what_is_bound() -> None:
    down = after(source(*BEGUN), set_link_up("of-D", up=False, now_ms=0), handle_heartbeat(10**12))
    assert keys(down.routes) == ["a"]


def test_what_has_expired_is_forgotten_and_asked_for_when_the_link_is_back() -> None:
    begun = after(DynamicRoutes(here="S", exchange=EXCHANGE), add_served(served(expires_ms=1_000))).routes
    begun = after(begun, *(receive_op("D", op) for op in BEGUN), set_link_up("of-D", up=False, now_ms=5_000)).routes
    assert keys(after(begun, handle_heartbeat(5_999)).routes) == ["a"]
    gone = after(begun, handle_heartbeat(6_000), set_link_up("of-D", up=True, now_ms=7_000)).routes
    assert keys(gone) == []
    assert [type(op) for op in ops(step(gone, receive_op("D", hello(gone, number=1, digest="all"))))] == [
        RequestSnapshot
    ]


# What others read


def test_ways_show_the_active_one_first_and_who_stands_by() -> None:
    routes = after(source(*BEGUN), add_served(served(peer="E"))).routes
    by_e = snapshot(
        {"D": AdvertisedRoute(path=("D", "E"), hops_left=7, bindings=frozenset({BindingAdvertisement("a")}))}
    )
    routes = after(routes, *(receive_op("E", op) for op in by_e)).routes
    assert [(way.route, way.path, way.active) for way in list_paths(routes)] == [
        ("pull@D", ("D",), True),
        ("pull@E", ("E", "D"), False),
    ]
    assert keys(routes, "pull@E") == []
    down = after(routes, set_link_up("of-D", up=False, now_ms=0)).routes
    assert [(way.route, way.outages, way.active) for way in list_paths(down)] == [
        ("pull@E", 0, True),
        ("pull@D", 1, False),
    ]


def test_of_two_ways_one_is_bound_at_any_time() -> None:
    start = after(source(*BEGUN), add_served(served(peer="E"))).routes
    by_e = snapshot(
        {"D": AdvertisedRoute(path=("D", "E"), hops_left=7, bindings=frozenset({BindingAdvertisement("a")}))}
    )
    start = after(start, *(receive_op("E", op) for op in by_e)).routes
    found = []
    down, up = (set_link_up("of-D", up=is_up, now_ms=0) for is_up in (False, True))
    events: list[DynamicEvent] = [down, up, remove_served("pull@D")]
    for event in events:
        start = step(start, event).routes
        found.append([name for name in start.served if keys(start, name) == ["a"]])
    assert found == [["pull@E"], ["pull@D"], ["pull@E"]]


def test_where_nobody_tells_of_a_way_any_more_the_last_one_is_bound_for_two_heartbeats_and_told_to_nobody() -> None:
    upstream = add_pull(pull())
    behind = replace(bind("a", sequence=2, path=("F", "D"), hops_left=7), origin="F")
    known = after(source(*snapshot({})), upstream, receive_op("D", behind)).routes
    left = after(known, receive_op("D", unbind(None, sequence=3, origin="F"))).routes
    assert list_paths(left) == []
    assert build_advertisement(left, left.pulls["pull"], choose_active_bridges(left)).keys() == {"S"}
    beats = [keys(after(left, *[handle_heartbeat(number)] * number).routes) for number in range(4)]
    assert beats == [["a"], ["a"], ["a"], []]
    again = replace(behind, binding=BindingAdvertisement("b"), sequence=4)
    assert keys(after(left, receive_op("D", again)).routes) == ["b"]
    assert not after(left, remove_served(NAME)).routes.former


def test_headers_bindings_with_one_key_and_different_arguments_are_both_bound() -> None:
    wants = [
        BindingAdvertisement.from_binding("", {"x-match": "all", "n": 1}),
        BindingAdvertisement.from_binding("", {"x-match": "all", "n": 2}),
    ]
    bindings = build_bindings(wants, exchange="amq.match", type_=ExchangeType.HEADERS, queue="bridge")
    assert len({binding.id for binding in bindings}) == 2
    queues = [Destination(queue="bridge", url="https://sqs/bridge")]
    table = RoutingTable(of_site(queues=queues, bindings=bindings))
    found = [bool(table.route(Publication(exchange="amq.match", key="", headers={"n": n}))) for n in (1, 2, 3)]
    assert found == [True, True, False]


def test_where_arguments_do_not_matter_keys_are_bound_once_and_as_they_are() -> None:
    wants = [
        BindingAdvertisement("k"),
        BindingAdvertisement.from_binding("k", {"note": "x"}),
        BindingAdvertisement("a.*"),
    ]
    bindings = build_bindings(wants, exchange="amq.topic", type_=ExchangeType.TOPIC, queue="bridge")
    assert [(binding.key, binding.arguments) for binding in bindings] == [("a.*", {}), ("k", {})]


# JSON and bytes

tags = st.text("ABab01_-", min_size=1, max_size=8)
wants = st.builds(
    BindingAdvertisement.from_binding,
    st.text(max_size=20),
    st.dictionaries(
        st.text(max_size=5),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.floats(-1e9, 1e9),
        max_size=3,
    ),
)
numbers = st.integers(0, 1 << 40)
names = st.text("abc@-.", min_size=1, max_size=8)
paths = st.lists(tags, min_size=1, max_size=5, unique=True).map(tuple)
binds = st.builds(
    lambda path, **rest: Bind(path=path, origin=path[0], **rest),
    paths,
    exchange=names,
    bridge=names,
    epoch=numbers,
    sequence=numbers,
    hops_left=st.integers(1, 64),
    outages=st.integers(0, 8),
    binding=st.none() | wants,
)
some_ops = st.one_of(
    binds,
    st.builds(
        Unbind, exchange=names, bridge=names, epoch=numbers, sequence=numbers, origin=tags, binding=st.none() | wants
    ),
    st.builds(
        RouteHello,
        exchange=names,
        bridge=names,
        epoch=numbers,
        number=numbers,
        sequence=numbers,
        digest=names,
    ),
    st.builds(RequestSnapshot, exchange=names, bridge=names, epoch=numbers, number=numbers),
)


@given(some_ops)
def test_an_op_comes_out_of_its_json_as_it_went_in(op: DynamicOp) -> None:
    assert decode_op(encode(op)) == op


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(some_ops, st.data())
def test_a_field_of_another_shape_is_malformed_or_harmless(op: DynamicOp, data: st.DataObject) -> None:
    document = json.loads(encode(op))
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(json_values)
    try:
        read = decode_op(json.dumps(document))
    except Malformed:
        return
    step(source(*BEGUN), receive_op("D", read))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"op":"X"}', '{"op":["bind"]}', '{"op":"wanted"}', "[" * 100_000, '{"op":"bind"}']
)
def test_what_is_no_op_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        decode_op(text)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda text: zlib.compress(b"{" + text)))
def test_a_hostile_snapshot_is_malformed(content: bytes) -> None:
    with pytest.raises(Malformed):
        read_snapshot([base64.b64encode(content).decode()])


@given(json_values)
def test_a_snapshot_of_another_shape_is_malformed(document: Any) -> None:
    said = {"kind": "wants", "version": 1, "value": {"D": [document] * 4, "E": document}}
    text = base64.b64encode(zlib.compress(json.dumps(said).encode())).decode()
    with pytest.raises(Malformed):
        read_snapshot([text])


def test_a_snapshot_that_unpacks_to_too_much_is_malformed() -> None:
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * (65 * 1024 * 1024) + b"]", 9)).decode()
    with pytest.raises(Malformed, match="too large"):
        read_snapshot([bomb])


advertised_routes = st.dictionaries(
    tags,
    st.builds(AdvertisedRoute, path=paths, hops_left=st.integers(1, 9), bindings=st.frozensets(wants, max_size=4)),
    max_size=4,
).map(lambda found: {reach.path[0]: reach for reach in found.values()})


@given(advertised_routes)
def test_a_snapshot_comes_out_as_it_went_in(told: dict[str, AdvertisedRoute]) -> None:
    assert read_snapshot(encode_snapshot(told)) == told
    assert compute_digest(read_snapshot(encode_snapshot(dict(reversed(told.items()))))) == compute_digest(told)


def stored_and_read(routes: DynamicRoutes) -> DynamicRoutes:
    return ROUTES.unpack(ROUTES.pack({EXCHANGE: routes}))[EXCHANGE]


def test_routes_come_out_of_storage_as_they_went_in() -> None:
    routes = destination(bound(("q", BindingAdvertisement.from_binding("k", {"x-match": "all", "n": 1.0}))))
    asked = RequestSnapshot(exchange=EXCHANGE, bridge="pull", epoch=1, number=1)
    routes = after(
        routes, receive_op("S", asked), add_served(served(peer="E")), set_link_up("of-E", up=False, now_ms=7)
    ).routes
    routes = after(routes, *(receive_op("E", replace(op, parts=2)) for op in BEGUN)).routes
    assert stored_and_read(routes) == routes
    whole = source(*BEGUN, bind("b", sequence=2))
    assert stored_and_read(whole) == whole


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"SLRT\x01",
        zlib.compress(b"{}"),
        zlib.compress(b"[]"),
        zlib.compress(b'{"kind":"dynamic routes","version":2,"value":{}}'),
        zlib.compress(b'{"kind":"dynamic routes","version":1,"value":[]}'),
        ROUTES.pack({EXCHANGE: DynamicRoutes(here="D", exchange=EXCHANGE)})[:-3],
    ],
)
def test_what_was_stored_by_nobody_is_refused(stored: bytes) -> None:
    with pytest.raises(BadSnapshot):
        ROUTES.unpack(stored)


# What a peer may lead to


def test_a_peer_leads_only_where_its_rule_lets_it() -> None:
    """What it says of other sites is kept, for the digest, and followed only once the rule allows it."""
    routes = after(
        source(*BEGUN), receive_op("D", bind("far", sequence=2, path=("FAR", "D"))), set_leads(NAME, ())
    ).routes
    assert choose_active_bridges(routes) == {"D": NAME}
    assert keys(routes) == ["a"]
    assert [path.active for path in list_paths(routes)] == [True, False]
    same = step(routes, receive_op("D", hello(routes, number=9, sequence=2)))
    assert (same.ignored, ops(same)) == (None, [])
    led = after(routes, set_leads(NAME, ("FA?",))).routes
    assert choose_active_bridges(led) == {"D": NAME, "FAR": NAME}
    assert keys(led) == ["a", "far"]
    back = after(led, set_leads(NAME, ())).routes
    assert (choose_bridges_in_use(back), keys(back)) == ({"D": NAME}, ["a"])


def test_a_snapshot_that_nobody_asked_for_is_asked_for_first() -> None:
    lie = snapshot({"D": AdvertisedRoute(path=("D",), hops_left=8)}, epoch=9, sequence=70)
    taken = step(source(*BEGUN), receive_op("D", lie[0]))
    assert taken.ignored is IgnoredReason.EPOCH
    assert (keys(taken.routes), [type(op) for op in ops(taken)]) == (["a"], [RequestSnapshot])
    assert taken.routes.served[NAME].version == source(*BEGUN).served[NAME].version


def test_what_a_peer_wants_has_a_limit_over_all_its_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_ADVERTISEMENTS", 2)
    routes = after(source(*BEGUN), receive_op("D", bind("b", sequence=2, path=("FAR", "D")))).routes
    refused = step(routes, receive_op("D", bind("c", sequence=3, path=("OFF", "D"))))
    assert (refused.ignored, keys(refused.routes)) == (IgnoredReason.LIMIT, ["a", "b"])
