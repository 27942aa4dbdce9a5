"""What of a topology loses messages, or doubles them: nothing else is worth a warning. Pure.

Dynamic routes deliver each message once, in whatever topology: only where a way is static in part can it be a second
one. A trace stops what goes round, and a pause, or a peer that is away, keeps messages: these are no findings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.topology import Route, Topology
from sluice.federation.map.ways import Followed, HeldBack, Meeting, Stop, Way, follow, graphs, routes_of, sites_of
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import DropReason
from sluice.federation.matching.topics import ANY, ONE, SEPARATOR

FOR_FIVE_MINUTES = "twice, where one way is five minutes later than the other"
ALWAYS = "twice, as standard queues know no duplicates"
_ARROW = " → "


class Effect(StrEnum):
    """What it does to messages."""

    LOST = "lost"
    DOUBLED = "doubled"


class Concern(StrEnum):
    """What looks wrong."""

    CYCLE = "cycle"
    MULTI_PATH = "multi-path"
    HOPS = "too many hops"
    NO_EXCHANGE = "missing exchange"
    KEY = "key out of reach"
    TYPE_MISMATCH = "type mismatch"
    FAILED = "failed route"
    NO_PERMISSION = "missing permission"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that looks wrong, at these sites, in the order in which the text names them, by these routes."""

    concern: Concern
    sites: tuple[str, ...]
    text: str
    effect: Effect
    routes: tuple[Route, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.concern}: {self.text}"


def findings(topology: Topology) -> tuple[Finding, ...]:
    """Find all that loses or doubles messages, in order of concern and sites, each once."""
    found = [
        *_of_ways(topology),
        *_missing_exchanges(topology),
        *_keys_out_of_reach(topology),
        *_type_mismatches(topology),
        *_failed_routes(topology),
        *_missing_permissions(topology),
    ]
    order = list(Concern)
    return tuple(sorted(set(found), key=lambda finding: (order.index(finding.concern), finding)))


def of_route(topology: Topology, *, site: str, name: str) -> tuple[Finding, ...]:
    """Find what a route adds, by its name at the site that declared it: second ways, cycles, hops.

    What else may be wrong with it, its state says.
    """
    own = {route for route in topology.routes if route.bridge.name == name and site in {route.source, route.dest}}
    found = (each for each in _of_messages(topology) if not own.isdisjoint(each[1].routes))
    return tuple(sorted(_once(found)))


def _of_ways(topology: Topology) -> Iterator[Finding]:
    return _once(_of_messages(topology))


def _once(found: Iterable[tuple[object, Finding]]) -> Iterator[Finding]:
    """Say what is found of two sites, a ring or a route once, for one key."""
    seen: set[object] = set()
    for what, finding in found:
        if what not in seen:
            seen.add(what)
            yield finding


def _of_messages(topology: Topology) -> Iterator[tuple[object, Finding]]:
    """Follow a message from each stop on, with the key that it was published with."""
    for graph in graphs(topology):
        for start in (stop for stop in graph if stop.key is None):
            yield from _of_message(follow(graph, start), start)


def _of_message(followed: Followed, start: Stop) -> Iterator[tuple[object, Finding]]:
    """Say what becomes of a message, each with what no other finding is about."""
    # Of a queue each message goes over one of the routes: what begins there has no two ways.
    for meeting in [] if start.is_queue else followed.meetings:
        if all(edge.is_dynamic for edge in (*meeting.first, *meeting.second)):
            continue
        if not meeting.first:
            yield frozenset(sites_of(meeting.second)), _comes_back(meeting.second)
        elif _parts_at_once(meeting):
            sites = meeting.first[0].source.site, meeting.first[-1].dest.site
            yield sites, _doubled(meeting, sites)
    for held in followed.held:
        last = held.way[-1]
        if last.source.is_queue:
            yield (held.reason, last), _dead(held)
        elif held.reason is DropReason.HOPS:
            yield (held.reason, last), _stopped(held.way)


def _parts_at_once(meeting: Meeting) -> bool:
    """Whether two ways part where they begin, and meet at another site: a queue has one copy of an exchange's."""
    first, second = meeting.first, meeting.second
    return first[0] is not second[0] and first[0].source.site != first[-1].dest.site


def _doubled(meeting: Meeting, sites: tuple[str, str]) -> Finding:
    ways = meeting.first, meeting.second
    # By their sites; by their routes where both go by the same sites.
    by_site = [_ARROW.join(sites_of(way)) for way in ways]
    by_route = [", ".join(route.name for route in routes_of(way)) for way in ways]
    named = f"{by_site[0]} by {' and by '.join(by_route)}" if by_site[0] == by_site[1] else " and ".join(by_site)
    how = FOR_FIVE_MINUTES if all(way[-1].knows_duplicates for way in ways) else ALWAYS
    routes = (*routes_of(meeting.first), *routes_of(meeting.second))
    return Finding(Concern.MULTI_PATH, sites, f"{named}: {how}", Effect.DOUBLED, routes)


def _comes_back(way: Way) -> Finding:
    """Say of a ring that no trace stops, as its routes have tags of their own; from its first site on."""
    around = sites_of(way)[:-1]
    first = around.index(min(around))
    around = around[first:] + around[:first]
    text = f"{_ARROW.join((*around, around[0]))}: what is published comes back, as routes' tags aren't their sites'"
    return Finding(Concern.CYCLE, around, text, Effect.DOUBLED, routes_of(way))


def _dead(held: HeldBack) -> Finding:
    """Say of a queue route that it drops what the queue has from exchanges: that becomes dead letters."""
    sites, last = sites_of(held.way), held.way[-1]
    concern = Concern.HOPS if held.reason is DropReason.HOPS else Concern.CYCLE
    text = f"{_ARROW.join(sites)}: what comes so to the queue {last.source.name} at {last.source.site} is dead there"
    return Finding(concern, sites, text, Effect.LOST, routes_of(held.way))


def _stopped(way: Way) -> Finding:
    routes, sites = routes_of(way), sites_of(way)
    most = routes[-1].bridge.max_hops
    text = f"{_ARROW.join(sites)}: {routes[-1].name} takes nothing that has been over {most} routes"
    return Finding(Concern.HOPS, sites, text, Effect.LOST, routes)


# What is wrong with one route


def _missing_exchanges(topology: Topology) -> Iterator[Finding]:
    for route in topology.routes:
        bridge = route.bridge
        named = (
            [(route.dest, bridge.dest)]
            if bridge.src_is_queue
            else [
                (route.source, bridge.src),
                (route.dest, bridge.dest),
            ]
        )
        for tag, exchange in named:
            if tag in topology.sites and exchange not in topology.sites[tag].exchanges:
                text = (
                    f"{tag} has no exchange {exchange}, which {route.name} goes {'to' if tag == route.dest else 'from'}"
                )
                yield _of_route(Concern.NO_EXCHANGE, route, text)


def _keys_out_of_reach(topology: Topology) -> Iterator[Finding]:
    """Find patterns at direct exchanges, which compare keys whole: no pattern's messages take the route."""
    for route in topology.routes:
        bridge = route.bridge
        type_ = topology.type_of(route.source, bridge.src)
        is_direct = type_ is not None and type_.index_class.follows_keys and not type_.index_class.has_patterns
        is_pattern = not {ONE, ANY}.isdisjoint(bridge.key.split(SEPARATOR))
        if is_direct and is_pattern and bridge.kind is RouteKind.STATIC:
            text = f"{route.name}: {bridge.src} at {route.source} is direct, {bridge.key} is a key there and no pattern"
            yield _of_route(Concern.KEY, route, text)


def _type_mismatches(topology: Topology) -> Iterator[Finding]:
    """Find dynamic routes whose exchanges differ: bindings of the one mean something else at the other."""
    for route in topology.routes:
        if _has_two_types(topology, route):
            source, dest = _types(topology, route)
            text = f"{route.source} {route.bridge.src} is {source}, {route.dest} {route.bridge.dest} is {dest}"
            yield _of_route(Concern.TYPE_MISMATCH, route, text)


def _has_two_types(topology: Topology, route: Route) -> bool:
    source, dest = _types(topology, route)
    return route.bridge.kind is RouteKind.DYNAMIC and source is not None and dest is not None and source is not dest


def _types(topology: Topology, route: Route) -> tuple[ExchangeType | None, ExchangeType | None]:
    bridge = route.bridge
    return topology.type_of(route.source, bridge.src), topology.type_of(route.dest, bridge.dest)


def _failed_routes(topology: Topology) -> Iterator[Finding]:
    """Find routes that fail by themselves; a link that fails is said once for all of its routes."""
    for route in topology.routes:
        if route.is_failed and route.state != LinkState.FAILED and not _has_two_types(topology, route):
            text = f"{route.source}{_ARROW}{route.dest} over {route.name}: {route.state}"
            yield _of_route(Concern.FAILED, route, text)


def _missing_permissions(topology: Topology) -> Iterator[Finding]:
    """Find links that are refused and have routes: what is queued for them is kept for two weeks."""
    for site in topology.sites.values():
        for link in site.links:
            status = site.statuses.get(link.name, LinkStatus())
            own = {site.tag, link.peer}
            routes = [
                each for each in topology.routes if each.bridge.link == link.name and {each.source, each.dest} == own
            ]
            if status.state is LinkState.FAILED and routes:
                text = f"{site.tag} at {link.peer} over {link.name}: {status.last_error or 'refused'}"
                yield Finding(Concern.NO_PERMISSION, (site.tag, link.peer), text, Effect.LOST, tuple(routes))


def _of_route(concern: Concern, route: Route, text: str) -> Finding:
    return Finding(concern, (route.source, route.dest), text, Effect.LOST, (route,))
