"""Bindings as changes: who takes them in one by one knows what who reads everything knows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.rendezvous.exchange_publisher import BindingCounts
from sluice.errors import BadBinding, BadSnapshot
from sluice.federation.exchange_store import (
    Change,
    ExchangeStore,
    add_binding,
    add_exchange,
    mark_feeding_queues,
    remove_binding,
    remove_exchange,
    remove_queue_bindings,
    replace_bindings,
)
from sluice.federation.matching.bindings import (
    MAX_PAGE,
    Binding,
    Bindings,
    BindingsChange,
    CachedReplica,
    Destination,
    QueueTable,
    RoutingTable,
    SiteBindings,
    build_replica,
    encode_page,
    iter_bound_queues,
)
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Crossing
from sluice.federation.matching.typed_values import Headers
from tests.bindings import bound
from tests.federation_fakes import FakeChangeLog

NAMES = ["amq.direct", "amq.topic", "amq.fanout", "amq.match", "own", "other"]
OWN = [
    Exchange(name="own", type=ExchangeType.TOPIC, alternate="amq.fanout"),
    Exchange(name="other", type=ExchangeType.HEADERS, alternate="own"),
]
QUEUES = ["q", "r", "s"]
KEYS = st.lists(st.sampled_from(["a", "b", "*", "#"]), max_size=3).map(".".join)
VALUES = st.sampled_from([1, True, 1.0, "1", None])


@st.composite
def bindings(draw: st.DrawFn) -> Binding:
    exchange = draw(st.sampled_from(NAMES))
    asked = draw(st.dictionaries(st.sampled_from(["h", "i"]), VALUES, max_size=2))
    match = {"x-match": draw(st.sampled_from(["all", "any"]))} if exchange in {"amq.match", "other"} else {}
    return Binding(exchange=exchange, queue=draw(st.sampled_from(QUEUES)), key=draw(KEYS), arguments={**match, **asked})


@st.composite
def destinations(draw: st.DrawFn, queue: str) -> Destination:
    crossing = draw(st.sampled_from([None, Crossing(peer="B", tag="A"), Crossing(peer="B", tag="A", max_hops=2)]))
    return Destination(queue=queue, url=f"url/{queue}", crossing=crossing)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    made = draw(st.sampled_from(["bind", "bind", "bind", "unbind", "queue", "exactly", "feed", "add", "remove"]))
    queue = draw(st.sampled_from(QUEUES))
    if made == "bind":
        binding = draw(bindings())
        return add_binding(binding, draw(destinations(binding.queue)))
    if made == "unbind":
        return remove_binding(draw(bindings()).id, missing_ok=True)
    if made == "queue":
        return remove_queue_bindings(queue)
    if made == "exactly":
        drawn = draw(st.lists(bindings(), max_size=4))
        wanted = {each.id: each for each in drawn if each.queue == queue}
        return replace_bindings((draw(destinations(queue)), list(wanted.values())))
    if made == "feed":
        return mark_feeding_queues(draw(st.sets(st.sampled_from([*QUEUES, "unbound"]))))
    own = draw(st.sampled_from(OWN))
    return add_exchange(own) if made == "add" else remove_exchange(own.name)


ASKED: list[Headers] = [{}, {"h": 1}, {"h": True, "i": "1"}, {"h": 1.0, "i": 1}]
PROBES = [
    Publication(exchange=exchange, key=key, headers=headers)
    for exchange in NAMES
    for key in ("", "a", "a.b", "a.a.b")
    for headers in ASKED
]


def routed(table: RoutingTable) -> list[object]:
    """Where each of the probes goes, in order; None where there is no such exchange."""
    found: list[object] = []
    for probe in PROBES:
        try:
            found.append(table.route(probe))
        except Exception as error:  # noqa: BLE001 - whatever it is, both are to raise it
            found.append(repr(error))
    return found


def spelled(site: SiteBindings) -> object:
    """All that is known, in words: to Python 1 and True are equal."""
    bound = sorted(f"{each.id} {sorted(each.arguments.items(), key=repr)}" for each in site)
    return site.exchanges, site.queues, bound, site.count, site.feeding_queues


@given(st.lists(st.tuples(st.sampled_from("12"), st.booleans(), st.sampled_from("--FB"), changes()), max_size=25))
def test_who_takes_changes_in_one_by_one_knows_what_who_reads_everything_knows(
    steps: list[tuple[str, bool, str, Change]],
) -> None:
    """Two writers by turns, readers that look now and then, snapshots amid it; the oracle is compiled from scratch."""
    log = FakeChangeLog(long=2)
    writers = {name: ExchangeStore(log) for name in "12"}
    table, demand = CachedReplica(log, RoutingTable), CachedReplica(log, BindingCounts)
    for writer, looks, folds, change in steps:
        store = writers[writer]
        try:
            store.change(change)
        except BadBinding:
            continue
        if folds == "F":
            store.save_snapshot()
        if looks:
            demand.value()
            table.value()
    site = writers["1"].bindings()
    read = build_replica(encode_page(site.snapshot()), SiteBindings)
    assert spelled(site) == spelled(writers["2"].bindings()) == spelled(ExchangeStore(log).bindings())
    # What is stored is in order of names, where it was in the order of its making.
    assert spelled(site) == spelled(read)
    scratch = RoutingTable(site.snapshot())
    assert (routed(table.value()), table.value().version) == (routed(scratch), log.written)
    counted = BindingCounts(site.snapshot())
    assert [demand.value().has_binding(name) for name in NAMES] == [counted.has_binding(name) for name in NAMES]


KNOWN = Bindings(
    queues=(Destination(queue="q", url="u"),), bound={"amq.match": {"q": {"k": {"x-match": "all", "h": 1}}}}
)


@pytest.mark.parametrize(
    "change",
    [
        BindingsChange(bound={"amq.topic": {"nobody": {"k": {}}}}),
        BindingsChange(bound={"nowhere": {"q": {"k": {}}}}),
        BindingsChange(bound={"amq.match": {"q": {"other": {"x-match": "some"}}}}),
        BindingsChange(unbound={"amq.topic": {"q": {"k": {}}}}),
        BindingsChange(unbound={"amq.direct": {"q": {"k": {}}}}),
        BindingsChange(unbound={"amq.fanout": {"q": {"k": {}}}}),
        BindingsChange(unbound={"amq.match": {"q": {"other": {"x-match": "any", "h": 1}}}}),
        BindingsChange(exchanges=(Exchange(name="x", type=ExchangeType.TOPIC, alternate="nowhere"),)),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [SiteBindings, RoutingTable])
def test_what_is_no_change_of_this_version_is_refused(make: Any, change: BindingsChange) -> None:
    with pytest.raises(BadBinding):
        make(KNOWN).apply(change)


def test_what_is_stored_in_pages_is_read_page_by_page() -> None:
    """One page would be as large in memory as all of the bindings."""
    queues = [Destination(queue=f"q{number}", url=f"url/q{number}") for number in range(MAX_PAGE + 1)]
    wanted = [Binding(exchange="amq.direct", queue=queue.queue, key=f"k{n}") for queue in queues for n in range(2)]
    site = SiteBindings(bound(wanted, queues, [*STANDARD_EXCHANGES, *OWN], version=7))
    pages = list(site.pages())
    assert [len(page.queues) for page in pages] == [0, MAX_PAGE, 1, 0, 0, 0]
    assert [sum(len(keys) for _, _, keys in iter_bound_queues(page.bound)) for page in pages] == [
        0,
        0,
        0,
        MAX_PAGE,
        MAX_PAGE,
        2,
    ]
    stored = b"".join(map(encode_page, pages))
    read = build_replica(stored, SiteBindings)
    assert (read.version, read.snapshot()) == (7, site.snapshot())
    table = build_replica(stored, RoutingTable)
    found = table.route(Publication(exchange="amq.direct", key="k0"))
    assert found == tuple(sorted(queues, key=lambda each: each.queue))
    with pytest.raises(BadSnapshot):
        build_replica(stored[:-5], SiteBindings)


@given(
    st.lists(
        destinations("q") | destinations("queue") | st.builds(Destination, queue=st.text(), url=st.text()),
        unique_by=lambda each: each.queue,
    )
)
def test_a_destination_that_was_made_short_is_made_whole(known: list[Destination]) -> None:
    table = QueueTable()
    for destination in known:
        table[destination.queue] = destination
    assert [table[destination.queue] for destination in known] == known
