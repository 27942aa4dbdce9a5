"""One message at an exchange and on a bridge: copies, drops, what it carries."""

import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.errors import Malformed, TooLarge, UnknownExchange, WentAround
from sluice.federation.forwarder import forward
from sluice.federation.matching.bindings import Binding, Destination, RoutingTable
from sluice.federation.matching.metadata import (
    ATTRIBUTE,
    BODY_HASH_CHARACTERS,
    KEY_ATTRIBUTE,
    Crossing,
    Drop,
    DropReason,
    Metadata,
    ReceivedMessage,
    is_tag,
    open_attributes,
    seal_attributes,
)
from sluice.federation.router import publish
from sluice.message import MAX_MESSAGE_BYTES, Attributes, Message, Outgoing, Value
from tests.bindings import bound

ULID = "01JD0000000000000000000000"
ID = f"HERE.{ULID}"
OTHER_ID = "THERE.01JD0000000000000000000001"
NOW = 1_700_000_000_000
CROSSING = Crossing(peer="PEER", tag="HERE")
TABLE = RoutingTable(
    bound(
        queues=[
            Destination(queue="plain", url="https://sqs/plain"),
            Destination(queue="fifo", url="https://sqs/fifo.fifo"),
            Destination(queue="bridge", url="https://sqs/bridge", crossing=CROSSING),
            Destination(queue="read", url="https://sqs/read", feeds_route=True),
        ],
        bindings=[
            *(Binding(exchange="amq.fanout", queue=queue) for queue in ("plain", "fifo", "bridge", "read")),
            Binding(exchange="amq.direct", queue="plain", key="key"),
            Binding(exchange="amq.match", queue="plain", arguments={"x-match": "all", "n": 2, "typed": True}),
        ],
    )
)


def receipt(
    attributes: Attributes | None = None,
    *,
    body: str = "body",
    system: dict[str, str] | None = None,
    now_ms: int = NOW,
) -> ReceivedMessage:
    message = Message(
        message_id="sqs-id", body=body, attributes=attributes or {}, system=system or {"SentTimestamp": str(NOW - 50)}
    )
    return ReceivedMessage(message=message, site="HERE", ulid=ULID, now_ms=now_ms)


def claiming(**fields: Any) -> dict[str, Value]:
    return {ATTRIBUTE: Value("String", json.dumps(fields))}


def metadata_of(outgoing: Outgoing) -> Metadata:
    metadata = open_attributes(outgoing.attributes).metadata
    assert metadata is not None
    return metadata


def crossing_of(of: ReceivedMessage, *, crossing: Crossing = CROSSING, fifo: bool = False) -> Outgoing:
    sent = forward(of, crossing=crossing, dest="x", fifo=fifo)
    assert isinstance(sent, Outgoing)
    return sent


def test_a_message_is_stamped_at_its_first_exchange() -> None:
    published = publish(receipt(), trusted=False, exchange="amq.fanout", table=TABLE)
    assert metadata_of(published.copies[0].outgoing).message_id == ID
    assert [copy.destination.queue for copy in published.copies] == ["bridge", "fifo", "plain", "read"]
    assert metadata_of(published.copies[0].outgoing) == Metadata(
        exchange="amq.fanout", key="", message_id=ID, published_at_ms=NOW - 50, stamped_at_ms=NOW - 50
    )


def test_a_foreign_producer_gives_the_key_as_an_attribute() -> None:
    attributes = {KEY_ATTRIBUTE: Value("String", "key")}
    published = publish(receipt(attributes), trusted=False, exchange="amq.direct", table=TABLE)
    assert open_attributes(published.copies[0].outgoing.attributes).attributes == attributes


def test_a_key_in_the_metadata_wins() -> None:
    attributes = {KEY_ATTRIBUTE: Value("String", "other"), **claiming(key="key")}
    assert publish(receipt(attributes), trusted=False, exchange="amq.direct", table=TABLE).copies


@pytest.mark.parametrize("value", [Value("String", "k" * 257), Value("Binary", b"key")])
def test_a_key_that_cannot_be_is_the_senders_fault(value: Value) -> None:
    with pytest.raises(Malformed):
        publish(receipt({KEY_ATTRIBUTE: value}), trusted=False, exchange="amq.direct", table=TABLE)


def test_attributes_and_typed_headers_are_matched_together() -> None:
    attributes = {"n": Value("Number", "2"), **claiming(headers={"typed": True})}
    assert publish(receipt(attributes), trusted=False, exchange="amq.match", table=TABLE).copies
    attributes = {"n": Value("String", "2"), **claiming(headers={"typed": True})}
    assert not publish(receipt(attributes), trusted=False, exchange="amq.match", table=TABLE).copies


def test_what_an_ordinary_publisher_claims_of_the_way_is_forgotten() -> None:
    attributes = claiming(trace=["HERE", "PEER"], id=OTHER_ID, published=5, stamped=6, key="k", headers={"a": 1})
    published = publish(receipt(attributes), trusted=False, exchange="amq.fanout", table=TABLE)
    assert not published.dropped_messages
    assert metadata_of(published.copies[0].outgoing) == Metadata(
        exchange="amq.fanout",
        key="k",
        message_id=ID,
        published_at_ms=NOW - 50,
        stamped_at_ms=NOW - 50,
        headers={"a": 1},
    )


def test_what_comes_over_a_link_is_believed() -> None:
    attributes = claiming(trace=["THERE"], id=OTHER_ID, published=5, stamped=6, key="k")
    published = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=TABLE)
    assert metadata_of(published.copies[0].outgoing).message_id == OTHER_ID
    assert metadata_of(published.copies[0].outgoing) == Metadata(
        exchange="amq.fanout", key="k", trace=("THERE",), message_id=OTHER_ID, published_at_ms=5, stamped_at_ms=6
    )


def test_a_site_refuses_what_has_been_there() -> None:
    attributes = claiming(trace=["HERE", "THERE"], id=OTHER_ID)
    published = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=TABLE)
    assert published.copies == ()
    assert published.dropped_messages == (Drop(reason=DropReason.LOOP, message_id=OTHER_ID),)


def test_tags_are_compared_whole() -> None:
    attributes = claiming(trace=["HERE1", "PEER0", "ERE"], id=OTHER_ID)
    assert not publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=TABLE).dropped_messages


def test_a_message_is_not_put_on_the_bridge_to_where_it_has_been() -> None:
    published = publish(receipt(claiming(trace=["PEER"])), trusted=True, exchange="amq.fanout", table=TABLE)
    assert [copy.destination.queue for copy in published.copies] == ["fifo", "plain", "read"]
    assert published.dropped_messages == (Drop(reason=DropReason.LOOP, message_id=ID, queue="bridge"),)


def test_a_message_that_nobody_wants_is_counted() -> None:
    published = publish(receipt(), trusted=False, exchange="amq.direct", table=TABLE)
    assert published.dropped_messages == (Drop(reason=DropReason.UNROUTABLE, message_id=ID),)


def test_a_message_whose_time_is_over_is_counted() -> None:
    published = publish(receipt(claiming(ttl=50)), trusted=False, exchange="amq.fanout", table=TABLE)
    assert published.dropped_messages == (Drop(reason=DropReason.TTL, message_id=ID),)
    assert publish(receipt(claiming(ttl=51)), trusted=False, exchange="amq.fanout", table=TABLE).copies


def test_an_unknown_exchange_is_the_senders_fault() -> None:
    with pytest.raises(UnknownExchange):
        publish(receipt(), trusted=False, exchange="nope", table=TABLE)


def test_a_message_too_large_with_metadata_is_the_senders_fault() -> None:
    with pytest.raises(TooLarge):
        publish(receipt(body="x" * MAX_MESSAGE_BYTES), trusted=False, exchange="amq.fanout", table=TABLE)
    with pytest.raises(TooLarge):
        forward(receipt(body="x" * MAX_MESSAGE_BYTES), crossing=CROSSING, dest="x", fifo=False)


def test_ten_attributes_are_ten_where_the_way_ends_and_whole_where_it_goes_on() -> None:
    ten = {f"a{number}": Value("String", "x") for number in range(10)}
    copies = {
        c.destination.queue: c.outgoing
        for c in publish(receipt(ten), trusted=False, exchange="amq.fanout", table=TABLE).copies
    }
    assert copies["plain"].attributes == copies["fifo"].attributes == ten
    for queue in ("bridge", "read"):
        assert open_attributes(copies[queue].attributes).attributes == ten
        assert metadata_of(copies[queue]).message_id == ID


def test_a_fifo_queue_knows_the_message_by_its_id_and_body() -> None:
    """A peer that knows a message's id can't have another message taken for it."""
    _, fifo, plain, _ = publish(receipt(), trusted=False, exchange="amq.fanout", table=TABLE).copies
    assert (plain.outgoing.group_id, plain.outgoing.deduplication_id) == (None, None)
    assert fifo.outgoing.group_id == ID
    digest = hashlib.sha256(fifo.outgoing.body.encode()).hexdigest()[:BODY_HASH_CHARACTERS]
    assert fifo.outgoing.deduplication_id == f"{ID}.{digest}"
    forged = crossing_of(receipt(body="forged"), fifo=True)
    assert forged.deduplication_id != crossing_of(receipt(), fifo=True).deduplication_id


def test_group_and_trace_header_are_kept() -> None:
    system = {"SentTimestamp": str(NOW), "MessageGroupId": "g", "AWSTraceHeader": "Root=1"}
    for copy in publish(receipt(system=system), trusted=False, exchange="amq.fanout", table=TABLE).copies:
        assert (copy.outgoing.group_id, copy.outgoing.trace_header) == ("g", "Root=1")
    sent = crossing_of(receipt(system=system), fifo=True)
    assert (sent.group_id, sent.trace_header) == ("g", "Root=1")
    assert (sent.deduplication_id or "").startswith(f"{ID}.")


def test_a_peer_s_exchanges_each_get_a_message_that_comes_to_both() -> None:
    ids = {forward(receipt(), crossing=CROSSING, dest=dest, fifo=True).deduplication_id for dest in ("x", "y", "x")}  # type: ignore[union-attr]  # nothing is dropped
    assert len(ids) == 2


def test_a_bridge_appends_its_tag_and_shrinks_the_ttl() -> None:
    attributes = claiming(
        trace=["dont-exclude-me"], id=OTHER_ID, published=NOW - 700, stamped=NOW - 300, ttl=1_000, key="k"
    )
    sent = crossing_of(receipt(attributes), crossing=replace(CROSSING, tag="my-bridge-id"))
    assert metadata_of(sent) == Metadata(
        exchange="x",
        key="k",
        trace=("dont-exclude-me", "my-bridge-id"),
        message_id=OTHER_ID,
        published_at_ms=NOW - 700,
        stamped_at_ms=NOW,
        ttl_ms=700,
    )


def test_only_traces_without_an_excluded_tag_cross() -> None:
    crossing = Crossing(peer="PEER", tag="my-bridge-id", excludes=frozenset({"exclude-me", "also-exclude-me"}))
    traces = [[], ["exclude-me"], ["dont-exclude-me"], ["x", "also-exclude-me"], ["exclude-me", "also-exclude-me"]]
    sent = [forward(receipt(claiming(trace=trace)), crossing=crossing, dest="x", fifo=False) for trace in traces]
    crossed = [metadata_of(one).trace for one in sent if isinstance(one, Outgoing)]
    assert crossed == [("my-bridge-id",), ("dont-exclude-me", "my-bridge-id")]
    assert [one.reason for one in sent if isinstance(one, Drop)] == [DropReason.LOOP] * 3


@pytest.mark.parametrize(("hops", "reason"), [(7, None), (8, DropReason.HOPS), (64, DropReason.HOPS)])
def test_a_message_goes_eight_hops(hops: int, reason: DropReason | None) -> None:
    attributes = claiming(trace=[f"S{number}" for number in range(hops)])
    sent = forward(receipt(attributes), crossing=CROSSING, dest="x", fifo=False)
    assert (sent.reason if isinstance(sent, Drop) else None) == reason


def test_a_queue_route_carries_what_no_exchange_has_seen() -> None:
    ten = {f"a{number}": Value("Binary", bytes([number])) for number in range(10)}
    sent = crossing_of(receipt(ten, body=" "))
    assert sent.body == " "
    assert open_attributes(sent.attributes).attributes == ten
    assert metadata_of(sent).message_id == ID
    assert metadata_of(sent).trace == ("HERE",)


def test_the_same_message_received_again_is_sent_again_the_same() -> None:
    assert crossing_of(receipt(), fifo=True) == crossing_of(receipt(), fifo=True)


def test_a_reply_to_and_a_long_key_survive_the_hop() -> None:
    attributes = {"reply-to": Value("String", "q"), **claiming(key="k" * 256)}
    there = crossing_of(receipt(attributes))
    opened = open_attributes(there.attributes)
    assert opened.attributes == {"reply-to": Value("String", "q")}
    assert opened.metadata is not None
    assert opened.metadata.key == "k" * 256


def test_a_tag_is_one_to_thirty_two_of_its_characters() -> None:
    assert is_tag("SITE_1-a")
    assert is_tag("x" * 32)
    assert not any(is_tag(text) for text in ("", "x" * 33, "a.b", "a\n", "ä"))


def test_sealed_attributes_are_read_back_by_the_next_site() -> None:
    metadata = Metadata(exchange="e", key="k", trace=("A",), message_id=OTHER_ID)
    message = Message(message_id="m", body="", attributes=seal_attributes("", {}, metadata))
    arrived = ReceivedMessage(message=message, site="HERE", ulid=ULID, now_ms=NOW)
    [copy, *_] = publish(arrived, trusted=True, exchange="amq.fanout", table=TABLE).copies
    assert metadata_of(copy.outgoing).message_id == OTHER_ID


# Copies on dynamic bridges


def leading(*origins: str, peer: str, **fields: Any) -> Destination:
    crossing = Crossing(peer=peer, tag="HERE", origins=frozenset(origins), **fields)
    return Destination(queue=f"to-{peer}", url=f"https://sqs/to-{peer}.fifo", crossing=crossing)


def mesh_table(*bridges: Destination) -> RoutingTable:
    own = Destination(queue="own", url="https://sqs/own.fifo")
    static = Destination(queue="static", url="https://sqs/static", crossing=Crossing(peer="STATIC", tag="HERE"))
    queues = [own, static, *bridges]
    return RoutingTable(
        bound(queues=queues, bindings=[Binding(exchange="amq.fanout", queue=each.queue) for each in queues])
    )


MESH = mesh_table(leading("A", "B", peer="A"), leading("C", peer="C"))


def shared_out(attributes: Attributes, table: RoutingTable = MESH) -> dict[str, Any]:
    """By queue, whom its copy is for."""
    published = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=table)
    assert {drop.reason for drop in published.dropped_messages} <= {DropReason.UNROUTABLE}
    return {copy.destination.queue: metadata_of(copy.outgoing).to for copy in published.copies}


def test_the_bridges_share_out_whom_a_message_is_for() -> None:
    assert shared_out({}) == {
        "own": None,
        "static": None,
        "to-A": frozenset({"A", "B"}),
        "to-C": frozenset({"C"}),
    }


@pytest.mark.parametrize(
    ("to", "found"),
    [
        (["HERE"], {"own": None, "static": None}),
        (["B"], {"to-A": frozenset({"B"})}),
        (["HERE", "B", "C"], {"own": None, "static": None, "to-A": frozenset({"B"}), "to-C": frozenset({"C"})}),
        (["ELSEWHERE"], {}),
        ([], {}),
    ],
)
def test_a_copy_goes_on_for_those_alone_whom_it_is_for(to: list[str], found: dict[str, Any]) -> None:
    assert shared_out(claiming(to=to, trace=["C", "A"])) == found


def test_a_copy_that_is_for_nobody_who_is_known_here_is_counted() -> None:
    attributes = claiming(to=["ELSEWHERE"], id=OTHER_ID)
    published = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=MESH)
    assert published.dropped_messages == (Drop(reason=DropReason.UNROUTABLE, message_id=OTHER_ID),)


def test_without_an_address_it_is_for_nobody_who_has_had_it_and_not_put_on_the_bridge_to_where_it_was() -> None:
    attributes = claiming(trace=["B", "C"])
    published = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=MESH)
    assert {copy.destination.queue: metadata_of(copy.outgoing).to for copy in published.copies} == {
        "own": None,
        "static": None,
        "to-A": frozenset({"A"}),
    }
    assert [(drop.reason, drop.queue) for drop in published.dropped_messages] == [(DropReason.LOOP, "to-C")]


def test_an_address_is_believed_of_nobody_but_peers() -> None:
    published = publish(receipt(claiming(to=[], turns=7)), trusted=False, exchange="amq.fanout", table=MESH)
    assert len(published.copies) == 4
    static = crossing_of(receipt(claiming(to=["A"], turns=7)))
    assert (metadata_of(static).to, metadata_of(static).turns) == (None, 0)


def test_a_copy_whose_way_has_turned_back_goes_back_and_is_known_as_another() -> None:
    back = leading("C", peer="A", max_hops=1)
    attributes = claiming(trace=["A", "B"], to=["C"], turns=2, id=OTHER_ID)
    [copy] = publish(receipt(attributes), trusted=True, exchange="amq.fanout", table=mesh_table(back)).copies
    crossing = back.crossing
    assert crossing is not None
    queued = receipt(copy.outgoing.attributes)
    sent = [crossing_of(queued, crossing=crossing, fifo=True), crossing_of(receipt(attributes), crossing=crossing)]
    assert (metadata_of(sent[0]).trace, metadata_of(sent[0]).turns) == (("B", "HERE"), 3)
    ids = [
        crossing_of(receipt(claiming(to=to, turns=turns, id=OTHER_ID)), crossing=crossing, fifo=True).deduplication_id
        for to, turns in ((["C"], 2), (["C"], 3), (["C", "B"], 2), (["C"], 2))
    ]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


def test_copies_that_came_with_two_keys_are_known_as_two_on_each_further_way() -> None:
    """Two routes may give a message two keys; to FIFO queues on the way the second one is no duplicate."""
    keyed = [receipt(claiming(key=key, id=OTHER_ID)) for key in ("one", "two")]
    assert len({crossing_of(each, fifo=True).deduplication_id for each in keyed}) == 2
    bridge = Destination(queue="b.fifo", url="u/b.fifo", crossing=CROSSING)
    copies = [
        copy.outgoing.deduplication_id
        for each in keyed
        for copy in publish(each, trusted=True, exchange="amq.fanout", table=mesh_table(bridge)).copies
        if copy.destination == bridge
    ]
    assert len(copies) == len(set(copies)) == 2


def test_an_exclude_of_the_route_holds_for_addressed_copies_too() -> None:
    table = mesh_table(leading("C", peer="C", excludes=frozenset({"A"})))
    published = publish(receipt(claiming(trace=["A"], to=["C"])), trusted=True, exchange="amq.fanout", table=table)
    assert [drop.reason for drop in published.dropped_messages] == [DropReason.LOOP]


def test_a_copy_that_goes_round_for_ever_is_a_dead_letter() -> None:
    crossing = leading("C", peer="C").crossing
    assert crossing is not None
    with pytest.raises(WentAround, match="has crossed 1000 bridges on its way to C"):
        forward(receipt(claiming(to=["C"], turns=1_000)), crossing=crossing, dest="x", fifo=True)
