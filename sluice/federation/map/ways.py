"""Which ways messages take through a topology, over routes and bindings, as traces and hops let them. Pure.

A message's ways form a graph: from an exchange, or a queue that a route reads, over routes to exchanges of other sites,
and over bindings on to queues that routes read. One key is followed at a time, from one place on, as a bridge would
follow it: by the shortest way, and no further where the message has been already. What a route gives another key goes
on as what has that key, at stops of its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from msgspec import UNSET

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState
from sluice.federation.map.topology import Route, Topology
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Crossing, DropReason, Trace, crossed, held_back
from sluice.federation.matching.topics import ANY, ONE, SEPARATOR, past_any, places_after

MAX_IN_THREES = 16  # different patterns, up to which also keys of three of them at once are followed
MAX_IN_PAIRS = 200
ANY_KEY = ""
_FIFO_SUFFIX = ".fifo"


class Stop(NamedTuple):
    """A place on a message's way: an exchange, or a queue that a route reads.

    `key` is the one that a route has given the message on its way, None where it has its own.
    """

    site: str
    name: str
    is_queue: bool
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """A way from stop to stop: a route's, with what it asks of a trace, or a binding's.

    `key` None takes any key; `type` is the exchange's that has it. `dest_key` is what a route makes of it, None where
    messages keep theirs.
    """

    source: Stop
    dest: Stop
    key: str | None
    type: ExchangeType | None
    route: Route | None = None
    crossing: Crossing | None = None
    dest_key: str | None = None

    @property
    def is_dynamic(self) -> bool:
        """Whether dynamic routes see to it that nothing comes by it that comes otherwise."""
        return self.route is not None and self.route.bridge.kind is RouteKind.DYNAMIC

    @property
    def knows_duplicates(self) -> bool:
        """Whether it ends in a FIFO queue, which for five minutes takes no message twice."""
        if self.route is None:
            return self.dest.name.endswith(_FIFO_SUFFIX)
        bridge = self.route.bridge
        return bridge.src.endswith(_FIFO_SUFFIX) if bridge.src_is_queue else bridge.fifo


Way = tuple[Edge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A message comes to a stop a second time, by another way than before; `first` is empty where it began there."""

    first: Way
    second: Way


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A message that came by `way` is not put on the route of its last edge."""

    way: Way
    reason: DropReason


@dataclass(slots=True)
class Followed:
    """What becomes of one message. `held` has no exchange's that were reached by another way."""

    meetings: list[Meeting] = field(default_factory=list)
    held: list[HeldBack] = field(default_factory=list)


Graph = Mapping[Stop, Sequence[Edge]]


def graphs(topology: Topology) -> Iterator[Graph]:
    """Find the ways open to messages: for some keys, so that each way of routes that some message takes is in one."""
    edges = [_between(edge, None) for edge in _edges(topology)]
    seen: set[frozenset[Edge]] = set()
    takes = [_condition(edge) for edge in edges]
    given_keys: dict[Stop, list[Edge]] = {}
    for key in sorted({edge.dest_key for edge in edges if edge.dest_key is not None}):
        for edge, is_taken in zip(edges, takes, strict=True):
            if is_taken(key):
                given_keys.setdefault(edge.source._replace(key=key), []).append(_between(edge, key))
    for key in _keys(edges):
        taking = [edge for edge, is_taken in zip(edges, takes, strict=True) if is_taken(key)]
        if frozenset(taking) in seen:
            continue
        seen.add(frozenset(taking))
        graph = dict(given_keys)
        for edge in taking:
            graph.setdefault(edge.source, []).append(edge)
        yield graph


def _between(edge: Edge, key: str | None) -> Edge:
    """Return the edge between the stops of messages that were given this key, on to those of the key that it gives."""
    after = key if edge.dest_key is None else edge.dest_key
    if key is None and after is None:
        return edge
    return replace(edge, source=edge.source._replace(key=key), dest=edge.dest._replace(key=after))


def follow(graph: Graph, start: Stop) -> Followed:
    """Follow a message that is published at `start`, an exchange, or sent to it, a queue."""
    found = Followed()
    ways: dict[Stop, Way] = {start: ()}
    traces: dict[Stop, Trace] = {start: ()}
    to_visit = deque([start])
    held: list[HeldBack] = []
    while to_visit:
        here = to_visit.popleft()
        for edge in graph.get(here, ()):
            way, trace = (*ways[here], edge), traces[here]
            reason = None if edge.crossing is None else held_back(trace, edge.crossing)
            if reason is not None:
                held.append(HeldBack(way=way, reason=reason))
            elif edge.dest in ways:
                found.meetings.append(Meeting(first=ways[edge.dest], second=way))
            else:
                ways[edge.dest] = way
                traces[edge.dest] = trace if edge.crossing is None else crossed(trace, edge.crossing)
                to_visit.append(edge.dest)
    # What has come to an exchange by another way isn't missed there; what a queue route drops is dead.
    found.held = [each for each in held if each.way[-1].source.is_queue or each.way[-1].dest not in ways]
    return found


def sites_of(way: Way) -> tuple[str, ...]:
    """List the sites that a way leaves, and the one that it ends at."""
    left = tuple(edge.source.site for edge in way if edge.source.site != edge.dest.site)
    return (*left, way[-1].dest.site)


def routes_of(way: Way) -> tuple[Route, ...]:
    """List the routes that a way goes over."""
    return tuple(edge.route for edge in way if edge.route is not None)


def _edges(topology: Topology) -> Iterator[Edge]:
    """Over routes, and over bindings on to what routes read; but for routes that are about to go."""
    for route in topology.routes:
        if route.state != LinkState.CLOSING:
            yield _edge(route, topology)
    for site in topology.sites.values():
        for binding in site.feeds:
            exchange, dest = (
                Stop(site.tag, binding.exchange, is_queue=False),
                Stop(site.tag, binding.queue, is_queue=True),
            )
            type_ = topology.type_of(site.tag, binding.exchange)
            yield Edge(source=exchange, dest=dest, key=binding.key if _by_key(type_) else None, type=type_)


def _edge(route: Route, topology: Topology) -> Edge:
    bridge, site = route.bridge, route.source
    type_ = topology.type_of(site, bridge.src)
    return Edge(
        source=Stop(site, bridge.src, bridge.src_is_queue),
        dest=Stop(route.dest, bridge.dest, is_queue=False),
        key=bridge.key if bridge.kind is RouteKind.STATIC and _by_key(type_) else None,
        type=type_,
        route=route,
        crossing=route.crossing,
        dest_key=None if bridge.dest_key is UNSET else bridge.dest_key,
    )


def _by_key(type_: ExchangeType | None) -> bool:
    """Whether an exchange goes by keys; one that isn't known is taken for a topic exchange."""
    return type_ is None or type_.index_class.follows_keys


def _condition(edge: Edge) -> Callable[[str], bool]:
    """Whether a message with this key takes the edge."""
    key = edge.key
    if key is None:
        return lambda _: True
    index = (edge.type or ExchangeType.TOPIC).index_class()
    index.add("", {key: {}})
    return lambda said: bool(index.matches(Publication(exchange="", key=said)))


def _keys(edges: Iterable[Edge]) -> list[str]:
    """Give keys of messages: one for each pattern, and each two or three at once, as far as there are such keys."""
    found, patterns = dict[str, None](), set[str]()
    for edge in edges:
        if edge.key is None:
            continue
        if edge.type is None or edge.type.index_class.has_patterns:
            patterns.add(edge.key)
        else:
            found[edge.key] = None
    most = 3 if len(patterns) <= MAX_IN_THREES else 2 if len(patterns) <= MAX_IN_PAIRS else 1
    for number in range(1, most + 1):
        for some in combinations(sorted(patterns), number):
            key = common_key(some)
            if key is not None:
                found[key] = None
    return sorted(found) or [ANY_KEY]


# Keys that several topic patterns have in common


def common_key(patterns: Sequence[str]) -> str | None:
    """Find a key that matches every one of the patterns, of those with the fewest tokens; None where there is none.

    What it costs grows with the product of their lengths: it is for a handful of patterns.
    """
    split = [pattern.split(SEPARATOR) for pattern in patterns]
    words = sorted({token for tokens in split for token in tokens} - {ONE, ANY})
    words.append(max(words, key=len, default="") + "x")  # which no pattern has: only wildcards match it
    places = tuple(past_any(tokens, {0}) for tokens in split)
    to_visit, seen = deque([(places, list[str]())]), {places}
    while to_visit:
        here, key = to_visit.popleft()
        if key and all(len(tokens) in at for tokens, at in zip(split, here, strict=True)):
            return SEPARATOR.join(key)
        for word in words:
            after = tuple(places_after(tokens, at, word) for tokens, at in zip(split, here, strict=True))
            if all(after) and (after not in seen or not key):
                seen.add(after)
                to_visit.append((after, [*key, word]))
    return None
