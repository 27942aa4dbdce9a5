"""Which queues get a message, and a site's bindings as bytes."""

import json
import zlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BadBinding, BadSnapshot, UnknownExchange
from sluice.federation.matching.bindings import (
    Binding,
    Bindings,
    Destination,
    RoutingTable,
    SiteBindings,
    build_replica,
    encode_page,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Crossing
from tests.bindings import bound

QUEUES = [
    Destination(queue="q0", url="https://sqs/q0"),
    Destination(queue="q1", url="https://sqs/q1.fifo"),
    Destination(
        queue="bridge",
        url="https://sqs/bridge",
        crossing=Crossing(peer="B", tag="A", excludes=frozenset({"x", "y"}), max_hops=3),
    ),
    Destination(queue="read", url="https://sqs/read", feeds_route=True),
]


def table(*bindings: Binding, exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES) -> RoutingTable:
    return RoutingTable(bound(bindings, QUEUES, exchanges))


def routed(of: RoutingTable, exchange: str, key: str = "", **headers: Any) -> list[str]:
    return [d.queue for d in of.route(Publication(exchange=exchange, key=key, headers=headers))]


def test_a_direct_exchange_takes_the_key_byte_for_byte() -> None:
    of = table(
        Binding(exchange="amq.direct", queue="q0", key=""),
        Binding(exchange="amq.direct", queue="q1", key="a.*"),
        Binding(exchange="amq.direct", queue="q0", key="A"),
    )
    assert routed(of, "amq.direct", "") == ["q0"]
    assert routed(of, "amq.direct", "a.*") == ["q1"]
    assert routed(of, "amq.direct", "a.b") == routed(of, "amq.direct", "a") == []


def test_a_fanout_exchange_ignores_the_key() -> None:
    of = table(Binding(exchange="amq.fanout", queue="q1", key="k"), Binding(exchange="amq.fanout", queue="q0"))
    assert routed(of, "amq.fanout", "anything") == ["q0", "q1"]


@pytest.mark.parametrize("kind", ["amq.direct", "amq.topic", "amq.fanout", "amq.match"])
def test_a_queue_gets_one_copy_however_many_of_its_bindings_match(kind: str) -> None:
    arguments = {"x-match": "all"} if kind == "amq.match" else {}
    of = table(
        Binding(exchange=kind, queue="q0", key="a.b", arguments=arguments),
        Binding(exchange=kind, queue="q0", key="a.*", arguments=arguments),
        Binding(exchange=kind, queue="q0", key="#", arguments=arguments),
    )
    assert routed(of, kind, "a.b") == ["q0"]


def test_what_nothing_matches_goes_to_the_alternate_exchange_and_its_alternate() -> None:
    exchanges = (
        Exchange(name="first", type=ExchangeType.DIRECT, alternate="second"),
        Exchange(name="second", type=ExchangeType.TOPIC, alternate="last"),
        Exchange(name="last", type=ExchangeType.FANOUT),
    )
    of = table(
        Binding(exchange="first", queue="q0", key="a"),
        Binding(exchange="second", queue="q1", key="b.#"),
        Binding(exchange="last", queue="read"),
        exchanges=exchanges,
    )
    assert routed(of, "first", "a") == ["q0"]
    assert routed(of, "first", "b.c") == ["q1"]
    assert routed(of, "first", "c") == ["read"]


def test_alternates_in_a_ring_are_tried_once_each() -> None:
    exchanges = (
        Exchange(name="one", type=ExchangeType.DIRECT, alternate="two"),
        Exchange(name="two", type=ExchangeType.DIRECT, alternate="one"),
    )
    of = table(Binding(exchange="two", queue="q0", key="a"), exchanges=exchanges)
    assert routed(of, "one", "a") == routed(of, "two", "a") == ["q0"]
    assert routed(of, "one", "b") == []


def test_an_unknown_exchange_is_the_senders_fault() -> None:
    with pytest.raises(UnknownExchange):
        table().route(Publication(exchange="nope", key=""))


def test_the_same_queue_and_key_with_other_arguments_is_an_error() -> None:
    one = Binding(exchange="amq.match", queue="q0", key="k", arguments={"x-match": "all", "a": 1})
    again = Binding(exchange="amq.match", queue="q0", key="k", arguments={"a": 1, "x-match": "all"})
    other = Binding(exchange="amq.match", queue="q0", key="k", arguments={"x-match": "all", "a": True})
    assert SiteBindings(Bindings()).is_missing(one)
    bindings = SiteBindings(bound([one], QUEUES))
    assert not bindings.is_missing(again)
    with pytest.raises(BadBinding, match="other arguments"):
        bindings.is_missing(other)


@pytest.mark.parametrize(
    "binding",
    [
        Binding(exchange="nope", queue="q0"),
        Binding(exchange="amq.direct", queue="q0", key="k" * 257),
        Binding(exchange="amq.direct", queue="q0", key="\ud800"),
        Binding(exchange="amq.match", queue="q0", arguments={"x-match": "some"}),
        Binding(exchange="amq.direct", queue="q0", arguments={str(number): 1 for number in range(65)}),
        Binding(exchange="amq.direct", queue="q0", arguments={"\udfff": 1}),
    ],
)
def test_a_binding_that_cannot_be_is_refused(binding: Binding) -> None:
    with pytest.raises(BadBinding):
        SiteBindings(Bindings()).is_missing(binding)
    with pytest.raises(BadBinding):
        table(binding)


def test_an_alternate_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadBinding, match="no such alternate"):
        table(exchanges=(Exchange(name="one", type=ExchangeType.DIRECT, alternate="nope"),))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "n" * 128])
def test_a_bad_exchange_name_is_refused(name: str) -> None:
    with pytest.raises(BadBinding):
        Exchange(name=name, type=ExchangeType.DIRECT)


def test_a_key_of_256_characters_is_bound() -> None:
    of = table(Binding(exchange="amq.direct", queue="q0", key="k" * 256))
    assert routed(of, "amq.direct", "k" * 256) == ["q0"]


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.binary()
)
BINDINGS = st.lists(
    st.builds(
        lambda exchange, queue, key, asked: Binding(
            exchange=exchange,
            queue=queue,
            key=key,
            arguments={"x-match": "any", **asked} if exchange == "amq.match" else {},
        ),
        st.sampled_from([exchange.name for exchange in STANDARD_EXCHANGES]),
        st.sampled_from([queue.queue for queue in QUEUES]),
        st.lists(st.sampled_from(["a", "*", "#", "é"]), max_size=3).map(".".join),
        st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2),
    ),
    max_size=20,
    unique_by=lambda binding: binding.id,
)


def spelled(bindings: Iterable[Binding]) -> set[str]:
    """To Python 1 and True are equal, in words they aren't."""
    return {f"{binding.id} {sorted(binding.arguments.items(), key=repr)}" for binding in bindings}


@given(BINDINGS, st.sampled_from(["", "a", "é", "a.é"]))
def test_bindings_read_from_bytes_are_the_same_bindings(bindings: list[Binding], key: str) -> None:
    of = bound(bindings, QUEUES, version=7)
    read = build_replica(encode_page(of), SiteBindings)
    assert (read.version, read.queues, read.exchanges) == (7, of.queues, STANDARD_EXCHANGES)
    assert spelled(read) == spelled(bindings)
    assert read.count == len(bindings)
    assert encode_page(read.snapshot()) == encode_page(bound(bindings[::-1], QUEUES, version=7))
    before, after = RoutingTable(of), build_replica(encode_page(of), RoutingTable)
    for exchange in STANDARD_EXCHANGES:
        assert routed(after, exchange.name, key, a=1) == routed(before, exchange.name, key, a=1)


def test_a_hundred_thousand_bindings_take_less_than_half_a_mebibyte() -> None:
    bindings = [Binding(exchange="amq.topic", queue="q0", key=f"a.*.{number}.#") for number in range(20_000)]
    assert len(encode_page(bound(bindings, QUEUES))) * 5 < 512 * 1024


def stored(value: Any, *, kind: str = "bindings", version: Any = 1) -> bytes:
    return zlib.compress(json.dumps({"kind": kind, "version": version, "value": value}).encode())


GOOD = {
    "version": 1,
    "exchanges": [{"name": "x", "type": "direct"}, {"name": "h", "type": "headers", "alternate": "x"}],
    "queues": [{"queue": "q", "url": "u"}],
    "bound": {"x": {"q": {"k": {"a": 1}}}, "h": {"q": {"": {"x-match": "all"}}}},
}


@pytest.mark.parametrize(
    "snapshot",
    [
        b"",
        b"nope",
        stored(GOOD)[:-5],
        stored(GOOD)[:20] + b"\xff" + stored(GOOD)[21:],
        zlib.compress(b"not json"),
        zlib.compress(b"[" * 100_000),
        stored(GOOD, kind="registry"),
        stored(GOOD, version=2),
        stored([]),
        stored({**GOOD, "version": None}),
        stored({**GOOD, "more": 1}),
        stored({**GOOD, "exchanges": [{"name": "x", "type": "odd"}]}),
        stored({**GOOD, "exchanges": [{"name": "a b", "type": "direct"}]}),
        stored({**GOOD, "exchanges": [{"name": "x", "type": "direct", "alternate": "nope"}], "bound": {}}),
        stored({**GOOD, "queues": [{"queue": "q"}]}),
        stored({**GOOD, "queues": [{"queue": "q", "url": "u", "more": 1}]}),
        stored({**GOOD, "bound": {"x": {"nope": {"k": {}}}}}),
        stored({**GOOD, "bound": {"nope": {"q": {"k": {}}}}}),
        stored({**GOOD, "bound": {"h": {"q": {"k": {"x-match": "some"}}}}}),
        stored({**GOOD, "bound": {"x": {"q": {"k" * 257: {}}}}}),
        stored({**GOOD, "bound": {"x": {"q": {"k": {"a": []}}}}}),
        stored({**GOOD, "bound": {"x": {"q": {"k": {str(number): 1 for number in range(65)}}}}}),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_one_error(snapshot: bytes) -> None:
    with pytest.raises(BadSnapshot):
        build_replica(snapshot, SiteBindings)
    with pytest.raises(BadSnapshot):
        build_replica(snapshot, RoutingTable)


def test_a_good_snapshot_is_read() -> None:
    read = build_replica(stored(GOOD), SiteBindings)
    assert (read.version, read.count) == (1, 2)
