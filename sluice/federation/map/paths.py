"""Finds the paths of messages through a topology, over routes and bindings, within trace and hop limits. Pure.

A message's paths form a graph: from an exchange, or a queue that a route reads, over routes to exchanges of other
sites, and over bindings on to queues that routes read. One message with one key is followed at a time, from one start,
as bridges would forward it: by the shortest path, and never through a stop twice. If a route gives the message another
key, the message continues with that key, at separate stops.
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
from sluice.federation.matching.metadata import Crossing, DropReason, Trace, append_tag, find_drop_reason
from sluice.federation.matching.topics import ANY, ONE, SEPARATOR, add_positions_after_any, advance_positions
from sluice.message import FIFO_SUFFIX

MAX_PATTERNS_IN_TRIPLES = 16  # with more patterns, a sample key matches at most two of them
MAX_PATTERNS_IN_PAIRS = 200
ANY_KEY = ""


class Stop(NamedTuple):
    """A place on a message's path: an exchange, or a queue that a route reads.

    `key` is the key that a route has given the message on its path. It is None if the message still has its own key.
    """

    site: str
    name: str
    is_queue: bool
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """A step from stop to stop: over a route, with the route's `crossing` for traces, or over a binding.

    `key` is the key that messages need for this step; None matches any key. `type` is the type of the source exchange.
    `dest_key` is the key that the route gives messages; None leaves their keys unchanged.
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
        """Whether the edge is a dynamic route, which delivers no message that arrives over another path."""
        return self.route is not None and self.route.bridge.kind is RouteKind.DYNAMIC

    @property
    def is_deduplicated(self) -> bool:
        """Whether the edge ends in a FIFO queue, which drops duplicates within five minutes."""
        if self.route is None:
            return self.dest.name.endswith(FIFO_SUFFIX)
        bridge = self.route.bridge
        return bridge.src.endswith(FIFO_SUFFIX) if bridge.src_is_queue else bridge.fifo


Path = tuple[Edge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateArrival:
    """A message reaches a stop for the second time, by another path. `first_path` is empty if it started there."""

    first_path: Path
    second_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPath:
    """A path whose last edge is a route that drops the message, with the reason."""

    path: Path
    reason: DropReason


@dataclass(slots=True)
class MessageOutcome:
    """The outcome of following one message. `blocked_paths` leaves out exchanges reached by another path."""

    duplicates: list[DuplicateArrival] = field(default_factory=list)
    blocked_paths: list[BlockedPath] = field(default_factory=list)


Graph = Mapping[Stop, Sequence[Edge]]


def build_graphs(topology: Topology) -> Iterator[Graph]:
    """Yield a graph for each sample key. Each path that any message can take is in one of these graphs."""
    edges = [_set_edge_key(edge, None) for edge in _list_edges(topology)]
    seen_edge_sets: set[frozenset[Edge]] = set()
    takes = [_make_edge_condition(edge) for edge in edges]
    given_keys: dict[Stop, list[Edge]] = {}
    for key in sorted({edge.dest_key for edge in edges if edge.dest_key is not None}):
        for edge, is_taken in zip(edges, takes, strict=True):
            if is_taken(key):
                given_keys.setdefault(edge.source._replace(key=key), []).append(_set_edge_key(edge, key))
    for key in _choose_sample_keys(edges):
        taking = [edge for edge, is_taken in zip(edges, takes, strict=True) if is_taken(key)]
        if frozenset(taking) in seen_edge_sets:
            continue
        seen_edge_sets.add(frozenset(taking))
        graph = dict(given_keys)
        for edge in taking:
            graph.setdefault(edge.source, []).append(edge)
        yield graph


def _set_edge_key(edge: Edge, key: str | None) -> Edge:
    """Return the edge for messages with this key. Its end has the key that messages have after the edge."""
    after = key if edge.dest_key is None else edge.dest_key
    if key is None and after is None:
        return edge
    return replace(edge, source=edge.source._replace(key=key), dest=edge.dest._replace(key=after))


def follow_message(graph: Graph, start: Stop) -> MessageOutcome:
    """Follow a message from `start`: an exchange that it is published to, or a queue that it is sent to."""
    outcome = MessageOutcome()
    paths: dict[Stop, Path] = {start: ()}
    traces: dict[Stop, Trace] = {start: ()}
    to_visit = deque([start])
    blocked_paths: list[BlockedPath] = []
    while to_visit:
        here = to_visit.popleft()
        for edge in graph.get(here, ()):
            path, trace = (*paths[here], edge), traces[here]
            reason = None if edge.crossing is None else find_drop_reason(trace, edge.crossing)
            if reason is not None:
                blocked_paths.append(BlockedPath(path=path, reason=reason))
            elif edge.dest in paths:
                outcome.duplicates.append(DuplicateArrival(first_path=paths[edge.dest], second_path=path))
            else:
                paths[edge.dest] = path
                traces[edge.dest] = trace if edge.crossing is None else append_tag(trace, edge.crossing)
                to_visit.append(edge.dest)
    # A path counts as blocked if a queue route drops the message, or if no other path reaches the exchange.
    outcome.blocked_paths = [
        blocked for blocked in blocked_paths if blocked.path[-1].source.is_queue or blocked.path[-1].dest not in paths
    ]
    return outcome


def list_sites(path: Path) -> tuple[str, ...]:
    """Return the sites that a path leaves, and the site where the path ends."""
    left = tuple(edge.source.site for edge in path if edge.source.site != edge.dest.site)
    return (*left, path[-1].dest.site)


def list_routes(path: Path) -> tuple[Route, ...]:
    """Return the routes of a path, in order."""
    return tuple(edge.route for edge in path if edge.route is not None)


def _list_edges(topology: Topology) -> Iterator[Edge]:
    """Yield the edges of all routes that aren't closing, and of all bindings of queues that routes read."""
    for route in topology.routes:
        if route.state == LinkState.CLOSING:
            continue
        bridge, type_ = route.bridge, topology.find_exchange_type(route.source, route.bridge.src)
        yield Edge(
            source=Stop(route.source, bridge.src, bridge.src_is_queue),
            dest=Stop(route.dest, bridge.dest, is_queue=False),
            key=bridge.key if bridge.kind is RouteKind.STATIC and _matches_by_key(type_) else None,
            type=type_,
            route=route,
            crossing=route.crossing,
            dest_key=None if bridge.dest_key is UNSET else bridge.dest_key,
        )
    for site in topology.sites.values():
        for binding in site.feeding_bindings:
            type_ = topology.find_exchange_type(site.tag, binding.exchange)
            yield Edge(
                source=Stop(site.tag, binding.exchange, is_queue=False),
                dest=Stop(site.tag, binding.queue, is_queue=True),
                key=binding.key if _matches_by_key(type_) else None,
                type=type_,
            )


def _matches_by_key(type_: ExchangeType | None) -> bool:
    """Return whether an exchange selects messages by key. An unknown exchange counts as a topic exchange."""
    return type_ is None or type_.follows_keys


def _make_edge_condition(edge: Edge) -> Callable[[str], bool]:
    """Return a function that tells whether a message with a given key takes the edge."""
    key = edge.key
    if key is None:
        return lambda _: True
    index = (edge.type or ExchangeType.TOPIC).index_class()
    index.add("", {key: {}})
    return lambda key: bool(index.find_queues(Publication(exchange="", key=key)))


def _choose_sample_keys(edges: Iterable[Edge]) -> list[str]:
    """Return sample keys: one for each pattern, and one for every two or three patterns that match a common key."""
    keys, patterns = dict[str, None](), set[str]()
    for edge in edges:
        if edge.key is None:
            continue
        if edge.type is None or edge.type.index_class.has_patterns:
            patterns.add(edge.key)
        else:
            keys[edge.key] = None
    most = 3 if len(patterns) <= MAX_PATTERNS_IN_TRIPLES else 2 if len(patterns) <= MAX_PATTERNS_IN_PAIRS else 1
    for number in range(1, most + 1):
        for some in combinations(sorted(patterns), number):
            key = find_common_key(some)
            if key is not None:
                keys[key] = None
    return sorted(keys) or [ANY_KEY]


def find_common_key(patterns: Sequence[str]) -> str | None:
    """Find a shortest key, by tokens, that matches all of the patterns; None if no key matches all of them.

    The cost grows with the product of the patterns' lengths, so this function is only for a handful of patterns.
    """
    split = [pattern.split(SEPARATOR) for pattern in patterns]
    words = sorted({token for tokens in split for token in tokens} - {ONE, ANY})
    words.append(max(words, key=len, default="") + "x")  # no pattern has this word, so only wildcards match it
    places = tuple(add_positions_after_any(tokens, {0}) for tokens in split)
    to_visit, seen = deque([(places, list[str]())]), {places}
    while to_visit:
        here, key = to_visit.popleft()
        if key and all(len(tokens) in at for tokens, at in zip(split, here, strict=True)):
            return SEPARATOR.join(key)
        for word in words:
            after = tuple(advance_positions(tokens, at, word) for tokens, at in zip(split, here, strict=True))
            if all(after) and (after not in seen or not key):
                seen.add(after)
                to_visit.append((after, [*key, word]))
    return None
