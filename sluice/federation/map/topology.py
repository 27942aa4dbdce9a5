"""What all sites say of their links and routes, put together: who reaches whom, and what looks wrong. Pure.

A message's ways form a graph: from an exchange, or a queue that a route reads, over routes to exchanges of other sites,
and over bindings on to queues that routes read. Routes with keys that no message can have at once form no way together.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sluice.federation.links.links import Bridge, Link, RouteKind, ends
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.topics import overlap

_BY_KEY = frozenset({ExchangeType.DIRECT, ExchangeType.TOPIC, None})


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSite:
    """What one site says of itself. `statuses` are by link; `feeds` are its bindings to queues that routes read."""

    tag: str
    region: str = ""
    exchanges: Mapping[str, ExchangeType] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    statuses: Mapping[str, LinkStatus] = field(default_factory=dict)
    bridges: tuple[Bridge, ...] = ()
    feeds: tuple[Binding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A bridge, seen from above: from `source` to `dest`, both tags."""

    source: str
    dest: str
    bridge: Bridge
    state: LinkState


class Concern(StrEnum):
    """What looks wrong."""

    CYCLE = "cycle"
    MULTI_PATH = "multi-path"
    NO_REVERSE = "missing reverse route"
    TYPE_MISMATCH = "type mismatch"
    NO_PERMISSION = "missing permission"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that looks wrong, at these sites, in the order in which the text names them."""

    concern: Concern
    sites: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.concern}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All sites that were reached, by tag, and the routes between them and to those that weren't."""

    sites: Mapping[str, MappedSite]
    routes: tuple[Route, ...]

    @classmethod
    def of(cls, sites: Iterable[MappedSite]) -> "Topology":
        """Put the sites' words together. In order of tags, so equal sites give equal drawings."""
        by_tag = {site.tag: site for site in sorted(sites, key=lambda site: site.tag)}
        routes: list[Route] = []
        for site in by_tag.values():
            links = {link.name: link for link in site.links}
            for bridge in site.bridges:
                if bridge.link not in links:
                    continue
                source, dest = ends(bridge, links[bridge.link], here=site.tag)
                state = site.statuses.get(bridge.link, LinkStatus()).state
                if source != dest:  # a site that is linked to itself is refused; one that says so is not believed
                    routes.append(Route(source=source, dest=dest, bridge=bridge, state=state))
        routes.sort(key=lambda route: (route.source, route.dest, route.bridge.way, route.bridge.name))
        return cls(sites=by_tag, routes=tuple(routes))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of all sites, also those that only a link names."""
        named = {link.peer for site in self.sites.values() for link in site.links}
        return tuple(sorted(named | self.sites.keys()))

    def type_of(self, tag: str, exchange: str) -> ExchangeType | None:
        """Look up the type of a site's exchange; None where the site wasn't reached, or says nothing of it."""
        site = self.sites.get(tag)
        return None if site is None else site.exchanges.get(exchange)

    def findings(self) -> tuple[Finding, ...]:
        """Find all that looks wrong, in order of concern and sites, each once."""
        # Queue routes go one way by their nature.
        ways = {(route.source, route.dest) for route in self.routes if not route.bridge.src_is_queue}
        one_way = {(source, dest) for source, dest in ways if (dest, source) not in ways}
        found = [
            *_cycles(self),
            *_multi_paths(self),
            *(
                Finding(Concern.NO_REVERSE, (source, dest), f"{source} → {dest}, and nothing back")
                for source, dest in one_way
            ),
            *_type_mismatches(self),
            *_missing_permissions(self),
        ]
        order = list(Concern)
        return tuple(sorted(set(found), key=lambda finding: (order.index(finding.concern), finding)))


class _Stop(NamedTuple):
    """A place on a message's way."""

    site: str
    name: str
    is_queue: bool


class _Edge(NamedTuple):
    """A way from stop to stop; `key` None is any key."""

    source: _Stop
    dest: _Stop
    key: str | None
    name: str


_Way = tuple[_Edge, ...]
_ARROW = " → "


def _edges(topology: Topology) -> Iterator[_Edge]:
    """Over routes, and over bindings on to what routes read. An exchange that isn't known goes by key."""
    for route in topology.routes:
        bridge = route.bridge
        by_key = bridge.kind is RouteKind.STATIC and topology.type_of(route.source, bridge.src) in _BY_KEY
        yield _Edge(
            _Stop(route.source, bridge.src, bridge.src_is_queue),
            _Stop(route.dest, bridge.dest, is_queue=False),
            bridge.key if by_key else None,
            f"{bridge.link}/{bridge.name}",
        )
    for site in topology.sites.values():
        for binding in site.feeds:
            by_key = topology.type_of(site.tag, binding.exchange) in _BY_KEY
            yield _Edge(
                _Stop(site.tag, binding.exchange, is_queue=False),
                _Stop(site.tag, binding.queue, is_queue=True),
                binding.key if by_key else None,
                "",
            )


def _graphs(topology: Topology) -> Iterator[Mapping[_Stop, Sequence[_Edge]]]:
    """Find the ways open to one message: for each key of a route, those that a message with such a key can take."""
    edges = list(_edges(topology))
    keys: Sequence[str | None] = sorted({edge.key for edge in edges if edge.key is not None})
    for key in keys or [None]:
        graph: dict[_Stop, list[_Edge]] = {}
        for edge in edges:
            if key is None or edge.key is None or overlap(edge.key, key):
                graph.setdefault(edge.source, []).append(edge)
        yield graph


def _shortest(graph: Mapping[_Stop, Sequence[_Edge]], start: _Stop, without: frozenset[_Edge]) -> dict[_Stop, _Way]:
    """Find the shortest way to each stop that can be reached without those edges."""
    ways: dict[_Stop, _Way] = {start: ()}
    to_visit = deque([start])
    while to_visit:
        here = to_visit.popleft()
        for edge in graph.get(here, ()):
            if edge.dest not in ways and edge not in without:
                ways[edge.dest] = (*ways[here], edge)
                to_visit.append(edge.dest)
    return ways


def _cycles(topology: Topology) -> Iterator[Finding]:
    """Rings, each once, whichever way round. A route and its reverse make none, for that pair is as it should be."""
    seen: set[frozenset[_Stop]] = set()
    for graph in _graphs(topology):
        for edge in [edge for edges in graph.values() for edge in edges]:
            reverse = frozenset(back for back in graph.get(edge.dest, ()) if back.dest == edge.source)
            way_back = _shortest(graph, edge.dest, reverse).get(edge.source)
            if way_back is None:
                continue
            ring = (edge, *way_back)
            stops = frozenset(step.source for step in ring)
            if stops not in seen:
                seen.add(stops)
                sites = _sites_of(ring)
                first = sites.index(min(sites))
                sites = sites[first:] + sites[:first]
                yield Finding(Concern.CYCLE, sites, _ARROW.join((*sites, sites[0])))


def _sites_of(way: _Way) -> tuple[str, ...]:
    """List the sites that a way leaves."""
    return tuple(edge.source.site for edge in way if edge.source.site != edge.dest.site)


def _multi_paths(topology: Topology) -> Iterator[Finding]:
    """Pairs of sites where a message comes by two ways that part at the one and meet at the other; for each, two.

    What lies before the one or behind the other has two ways as well, and for no other cause: it isn't repeated.
    """
    seen: set[tuple[str, str]] = set()
    for graph in _graphs(topology):
        for start in graph:
            ways = _shortest(graph, start, frozenset())
            for stop, way in ways.items():
                pair = start.site, stop.site
                if start.site == stop.site or pair in seen:
                    continue
                # The shortest other one, with neither the first nor the last edge of this one.
                other = _shortest(graph, start, frozenset({way[0], way[-1]})).get(stop)
                if other is not None:
                    seen.add(pair)
                    # By their sites; by their routes where both go by the same sites.
                    by_site = [_ARROW.join((*_sites_of(each), stop.site)) for each in (way, other)]
                    by_route = [", ".join(edge.name for edge in each if edge.name) for each in (way, other)]
                    same_sites = by_site[0] == by_site[1]
                    text = f"{by_site[0]} by {' and by '.join(by_route)}" if same_sites else " and ".join(by_site)
                    yield Finding(Concern.MULTI_PATH, pair, text)


def _type_mismatches(topology: Topology) -> Iterator[Finding]:
    for route in topology.routes:
        if route.bridge.src_is_queue:
            continue
        source = topology.type_of(route.source, route.bridge.src)
        dest = topology.type_of(route.dest, route.bridge.dest)
        if source is not None and dest is not None and source is not dest:
            text = f"{route.source} {route.bridge.src} is {source}, {route.dest} {route.bridge.dest} is {dest}"
            yield Finding(Concern.TYPE_MISMATCH, (route.source, route.dest), text)


def _missing_permissions(topology: Topology) -> Iterator[Finding]:
    for site in topology.sites.values():
        for link in site.links:
            status = site.statuses.get(link.name, LinkStatus())
            if status.state is LinkState.FAILED:
                text = f"{site.tag} at {link.peer} over {link.name}: {status.last_error or 'refused'}"
                yield Finding(Concern.NO_PERMISSION, (site.tag, link.peer), text)
