"""Sites joined by static routes, in memory: how often each gets a message, and that every message comes to rest."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.forwarder import forward
from sluice.federation.matching.bindings import Binding, Destination, RoutingTable
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.metadata import (
    DEFAULT_MAX_HOPS,
    Crossing,
    Drop,
    DropReason,
    ReceivedMessage,
    open_attributes,
)
from sluice.federation.router import publish
from sluice.message import Message, Outgoing
from tests.bindings import bound

MAX_TRANSFERS = 100_000  # more is a loop
TRIANGLE = [("A", "B"), ("B", "C"), ("C", "A")]
RING = [("A", "B"), ("B", "C"), ("C", "D"), ("D", "A")]
LINE = [("A", "B"), ("B", "C"), ("C", "D")]

Join = tuple[str, str]


def both_ways(joins: Iterable[Join]) -> list[Join]:
    return [way for one, other in joins for way in ((one, other), (other, one))]


@dataclass
class Sites:
    """Each site has one fanout exchange, a queue of its own bound to it, and a bridge queue for each join out."""

    joins: list[Join]
    fifo: bool = False
    max_hops: int = DEFAULT_MAX_HOPS
    received: Counter[str] = field(default_factory=Counter)
    drops: Counter[DropReason] = field(default_factory=Counter)
    traces: list[tuple[str, ...]] = field(default_factory=list)
    transfers: int = 0

    def __post_init__(self) -> None:
        tags = {tag for join in self.joins for tag in join}
        self._tables = {tag: self._table(tag) for tag in tags}
        self._seen: set[tuple[str, str]] = set()

    def _table(self, tag: str) -> RoutingTable:
        peers = [(number, dest) for number, (source, dest) in enumerate(self.joins) if source == tag]
        queues = [Destination(queue="own", url="own")] + [
            Destination(
                queue=f"{number}",
                url=f"{number}",
                crossing=Crossing(peer=peer, tag=tag, max_hops=self.max_hops),
            )
            for number, peer in peers
        ]
        return RoutingTable(
            bound(
                exchanges=[Exchange(name="x", type=ExchangeType.FANOUT)],
                queues=queues,
                bindings=[Binding(exchange="x", queue=queue.queue) for queue in queues],
            )
        )

    def publish(self, at: str, messages: int) -> None:
        ways: deque[tuple[str, Message, bool]] = deque(
            (at, Message(message_id=f"{number}", body=f"Message {number + 1}"), False) for number in range(messages)
        )
        while ways:
            site, message, over_link = ways.popleft()
            ways.extend(self._arrive(site, message, over_link=over_link))

    def _arrive(self, site: str, message: Message, *, over_link: bool) -> Iterable[tuple[str, Message, bool]]:
        if self.fifo and message.deduplication_id is not None:
            if (site, message.deduplication_id) in self._seen:
                return
            self._seen.add((site, message.deduplication_id))
        ulid = f"{int(message.message_id):026d}"
        receipt = ReceivedMessage(message=message, site=site, ulid=ulid, now_ms=0)
        published = publish(receipt, exchange="x", table=self._tables[site], trusted=over_link)
        self.drops.update(drop.reason for drop in published.dropped_messages)
        for copy in published.copies:
            if copy.destination.crossing is None:
                self._keep(site, copy.outgoing)
                continue
            queued = received(message, copy.outgoing)
            sent = forward(
                ReceivedMessage(message=queued, site=site, ulid=ulid, now_ms=0),
                dest="x",
                crossing=copy.destination.crossing,
                fifo=self.fifo,
            )
            assert isinstance(sent, Outgoing)  # the exchange has asked the bridge already
            self.transfers += 1
            assert self.transfers < MAX_TRANSFERS
            yield copy.destination.crossing.peer, received(message, sent), True

    def _keep(self, site: str, outgoing: Outgoing) -> None:
        self.received[site] += 1
        metadata = open_attributes(outgoing.attributes).metadata
        assert metadata is not None
        self.traces.append(metadata.trace)


def received(before: Message, sent: Outgoing) -> Message:
    system = {"MessageDeduplicationId": sent.deduplication_id} if sent.deduplication_id is not None else {}
    return Message(message_id=before.message_id, body=sent.body, attributes=sent.attributes, system=system)


@pytest.mark.parametrize("joins", [TRIANGLE, RING])
@pytest.mark.parametrize("at", ["A", "B"])
def test_with_fifo_ingress_every_site_of_a_ring_gets_each_message_once(joins: list[Join], at: str) -> None:
    sites = Sites(both_ways(joins), fifo=True)
    sites.publish(at, 10)
    assert sites.received == {tag: 10 for join in joins for tag in join}
    assert sites.drops.keys() <= {DropReason.LOOP}


@pytest.mark.parametrize(("joins", "transfers"), [(TRIANGLE, 40), (RING, 60)])
def test_with_standard_ingress_a_ring_brings_each_message_by_both_ways_and_no_further(
    joins: list[Join], transfers: int
) -> None:
    sites = Sites(both_ways(joins))
    sites.publish("A", 10)
    assert sites.received.pop("A") == 10
    assert set(sites.received.values()) == {20}
    assert sites.transfers == transfers


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("at", ["A", "B", "D"])
def test_on_a_tree_each_site_gets_its_own_once(at: str, *, fifo: bool) -> None:
    sites = Sites(both_ways(LINE), fifo=fifo)
    sites.publish(at, 10)
    assert sites.received == {"A": 10, "B": 10, "C": 10, "D": 10}


def test_links_both_ways_echo_nothing() -> None:
    sites = Sites(both_ways([("LOCAL", "REMOTE")]))
    sites.publish("REMOTE", 10)
    assert sites.received == {"LOCAL": 10, "REMOTE": 10}
    assert Counter(sites.traces) == {("REMOTE",): 10, (): 10}
    assert sites.transfers == 10


def test_a_one_way_ring_ends_before_it_comes_back() -> None:
    sites = Sites(RING)
    sites.publish("A", 1)
    assert sites.received == {"A": 1, "B": 1, "C": 1, "D": 1}
    assert sites.drops == {DropReason.LOOP: 1}


def test_a_message_goes_no_further_than_its_hops() -> None:
    chain = [(f"S{number}", f"S{number + 1}") for number in range(12)]
    sites = Sites(chain)
    sites.publish("S0", 1)
    assert sites.transfers == 8
    assert sites.drops == {DropReason.HOPS: 1}


def test_tags_that_contain_each_other_do_not_clash() -> None:
    sites = Sites(both_ways([("SITE1", "SITE10"), ("SITE10", "SITE100")]))
    sites.publish("SITE1", 10)
    assert sites.received == {"SITE1": 10, "SITE10": 10, "SITE100": 10}


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("tags", [("A", "B"), ("mine", "mine"), ("x", "y")])
def test_on_two_opposite_queue_routes_a_message_stops_after_one_lap(tags: tuple[str, str], *, fifo: bool) -> None:
    # What crosses goes straight into the other's source queue, so no exchange could stop it.
    crossings = {
        "A": Crossing(peer="B", tag=tags[0], excludes=frozenset(tags)),
        "B": Crossing(peer="A", tag=tags[1], excludes=frozenset(tags)),
    }
    site, message, transfers = "A", Message(message_id="m", body="once"), 0
    while True:
        receipt = ReceivedMessage(message=message, site=site, ulid="0" * 26, now_ms=0)
        sent = forward(receipt, crossing=crossings[site], dest="x", fifo=fifo)
        if isinstance(sent, Drop):
            break
        transfers += 1
        assert transfers <= 2
        site, message = crossings[site].peer, received(message, sent)
    assert sent.reason is DropReason.LOOP


def test_without_its_own_tags_an_opposite_pair_of_queue_routes_ends_with_its_hops() -> None:
    crossings = {"A": Crossing(peer="B", tag="x"), "B": Crossing(peer="A", tag="y")}
    site, message, transfers = "A", Message(message_id="m", body="once"), 0
    while True:
        receipt = ReceivedMessage(message=message, site=site, ulid="0" * 26, now_ms=0)
        sent = forward(receipt, crossing=crossings[site], dest="x", fifo=False)
        if isinstance(sent, Drop):
            break
        transfers += 1
        site, message = crossings[site].peer, received(message, sent)
    assert (transfers, sent.reason) == (DEFAULT_MAX_HOPS, DropReason.HOPS)


TAGS = ["A", "B", "C", "D", "E"]
JOINS = st.lists(
    st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)).filter(lambda join: join[0] != join[1]),
    min_size=1,
    max_size=9,
)


@given(JOINS, st.integers(1, 4))
def test_whatever_the_joins_a_message_comes_to_rest_and_never_visits_twice(joins: list[Join], max_hops: int) -> None:
    sites = Sites(joins, max_hops=max_hops)
    sites.publish(joins[0][0], 1)
    for trace in sites.traces:
        assert len(trace) <= max_hops
        assert len(set(trace)) == len(trace)
    assert sites.received[joins[0][0]] == 1


@given(JOINS)
def test_with_fifo_ingress_every_reachable_site_gets_a_message_exactly_once(joins: list[Join]) -> None:
    sites = Sites(joins, fifo=True)
    sites.publish(joins[0][0], 1)
    assert sites.received == dict.fromkeys(reachable(joins, joins[0][0]), 1)


def reachable(joins: list[Join], start: str) -> set[str]:
    found = {start}
    while more := {dest for source, dest in joins if source in found} - found:
        found |= more
    return found
