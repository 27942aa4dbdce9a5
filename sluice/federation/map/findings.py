"""Finds the causes of lost or duplicated messages in a topology. Nothing else gets a warning. Pure.

Dynamic routes deliver each message once in any topology, so only a path with a static route can be a second path.
Traces stop messages in cycles, and messages wait while a route is paused or a peer is down: these are no findings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.paths import (
    DuplicateArrival,
    MessageOutcome,
    Path,
    Stop,
    build_graphs,
    follow_message,
    list_routes,
    list_sites,
)
from sluice.federation.map.topology import Route, Topology
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import DropReason
from sluice.federation.matching.topics import ANY, ONE, SEPARATOR

DUPLICATED_AFTER_WINDOW = "twice, where one way is five minutes later than the other"
ALWAYS_DUPLICATED = "twice, as standard queues know no duplicates"
_ARROW = " → "


class MessageEffect(StrEnum):
    """The effect of a finding on messages."""

    LOST = "lost"
    DOUBLED = "doubled"


class Concern(StrEnum):
    """The kinds of findings."""

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
    """A problem of the topology, caused by the routes in `routes`. `sites` are in the order of the text."""

    concern: Concern
    sites: tuple[str, ...]
    text: str
    effect: MessageEffect
    routes: tuple[Route, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.concern}: {self.text}"


def list_findings(topology: Topology) -> tuple[Finding, ...]:
    """Return the causes of lost or duplicated messages, each once, ordered by concern and sites."""
    findings = [
        *_drop_repeated_findings(_find_message_problems(topology)),
        *(
            Finding(concern, (route.source, route.dest), text, MessageEffect.LOST, (route,))
            for route in topology.routes
            for concern, text in _find_route_problems(topology, route)
        ),
        *_find_missing_permissions(topology),
    ]
    order = list(Concern)
    return tuple(sorted(set(findings), key=lambda finding: (order.index(finding.concern), finding)))


def list_route_findings(topology: Topology, *, site: str, name: str) -> tuple[Finding, ...]:
    """Return the second paths, cycles and hop limits that a route causes. `site` is the site that declares the route.

    The route's state shows all other problems of the route.
    """
    own = {route for route in topology.routes if route.bridge.name == name and site in {route.source, route.dest}}
    problems = (problem for problem in _find_message_problems(topology) if not own.isdisjoint(problem[1].routes))
    return tuple(sorted(_drop_repeated_findings(problems)))


def _drop_repeated_findings(problems: Iterable[tuple[object, Finding]]) -> Iterator[Finding]:
    """Yield one finding for each subject (two sites, a cycle or a route), even if several keys lead to this finding."""
    seen_subjects: set[object] = set()
    for what, finding in problems:
        if what not in seen_subjects:
            seen_subjects.add(what)
            yield finding


def _find_message_problems(topology: Topology) -> Iterator[tuple[object, Finding]]:
    """Follow a message from each exchange and queue where messages start, and yield the findings about the message."""
    for graph in build_graphs(topology):
        for start in (stop for stop in graph if stop.key is None):
            yield from _find_outcome_problems(follow_message(graph, start), start)


def _find_outcome_problems(outcome: MessageOutcome, start: Stop) -> Iterator[tuple[object, Finding]]:
    """Yield the findings about one message, each with its subject, by which duplicate findings are removed."""
    # Each message of a queue takes only one of the queue's routes, so two paths never begin at a queue.
    for meeting in [] if start.is_queue else outcome.duplicates:
        if all(edge.is_dynamic for edge in (*meeting.first_path, *meeting.second_path)):
            continue
        if not meeting.first_path:
            yield frozenset(list_sites(meeting.second_path)), _build_cycle_finding(meeting.second_path)
        # A queue gets one copy per exchange. So only paths that begin with different steps can duplicate its messages.
        elif meeting.first_path[0] is not meeting.second_path[0] and start.site != meeting.first_path[-1].dest.site:
            ends = meeting.first_path[0].source.site, meeting.first_path[-1].dest.site
            yield ends, _build_duplicate_finding(meeting, ends)
    for blocked in outcome.blocked_paths:
        last = blocked.path[-1]
        if last.source.is_queue:
            # If a queue route drops a message, the message becomes a dead letter.
            concern = Concern.HOPS if blocked.reason is DropReason.HOPS else Concern.CYCLE
            queue = f"the queue {last.source.name} at {last.source.site}"
            text = f"{_ARROW.join(list_sites(blocked.path))}: messages on this path become dead letters at {queue}"
            finding = Finding(concern, list_sites(blocked.path), text, MessageEffect.LOST, list_routes(blocked.path))
            yield (blocked.reason, last), finding
        elif blocked.reason is DropReason.HOPS:
            routes, sites = list_routes(blocked.path), list_sites(blocked.path)
            most = routes[-1].bridge.max_hops
            text = f"{_ARROW.join(sites)}: {routes[-1].name} forwards no message that has crossed {most} routes"
            yield (blocked.reason, last), Finding(Concern.HOPS, sites, text, MessageEffect.LOST, routes)


def _build_duplicate_finding(duplicate: DuplicateArrival, sites: tuple[str, str]) -> Finding:
    paths = duplicate.first_path, duplicate.second_path
    # The text names the sites of the paths. If both paths have the same sites, the text also names the routes.
    by_site = [_ARROW.join(list_sites(path)) for path in paths]
    by_route = [", ".join(route.name for route in list_routes(path)) for path in paths]
    named = f"{by_site[0]} by {' and by '.join(by_route)}" if by_site[0] == by_site[1] else " and ".join(by_site)
    how = DUPLICATED_AFTER_WINDOW if all(path[-1].is_deduplicated for path in paths) else ALWAYS_DUPLICATED
    routes = (*list_routes(duplicate.first_path), *list_routes(duplicate.second_path))
    return Finding(Concern.MULTI_PATH, sites, f"{named}: {how}", MessageEffect.DOUBLED, routes)


def _build_cycle_finding(path: Path) -> Finding:
    """Return the finding for a cycle that no trace stops, because its routes have their own tags.

    The sites are listed from the one with the lowest tag.
    """
    around = list_sites(path)[:-1]
    first = around.index(min(around))
    around = around[first:] + around[:first]
    text = f"{_ARROW.join((*around, around[0]))}: what is published comes back, as routes' tags aren't their sites'"
    return Finding(Concern.CYCLE, around, text, MessageEffect.DOUBLED, list_routes(path))


def _find_route_problems(topology: Topology, route: Route) -> Iterator[tuple[Concern, str]]:
    """Yield the problems of a route itself. A failed link is reported once for all of its routes."""
    bridge, types = route.bridge, list[ExchangeType | None]()
    for tag, exchange, direction in ((route.source, bridge.src, "from"), (route.dest, bridge.dest, "to")):
        is_queue = bridge.src_is_queue and direction == "from"
        if not is_queue and tag in topology.sites and exchange not in topology.sites[tag].exchanges:
            yield Concern.NO_EXCHANGE, f"{tag} has no exchange {exchange}, which {route.name} goes {direction}"
        types.append(topology.find_exchange_type(tag, exchange))
    source, dest = types
    # A direct exchange compares whole keys. So a route with a pattern gets no messages from this exchange.
    is_pattern = not {ONE, ANY}.isdisjoint(bridge.key.split(SEPARATOR))
    has_keys = source is not None and source.follows_keys and not source.index_class.has_patterns
    if has_keys and is_pattern and bridge.kind is RouteKind.STATIC:
        text = f"{route.name}: {bridge.src} at {route.source} is direct, {bridge.key} is a key there and no pattern"
        yield Concern.KEY, text
    # At an exchange of another type, bindings have another meaning.
    if bridge.kind is RouteKind.DYNAMIC and source is not None and dest is not None and source is not dest:
        text = f"{route.source} {bridge.src} is {source}, {route.dest} {bridge.dest} is {dest}"
        yield Concern.TYPE_MISMATCH, text
    elif route.is_failed and route.state != LinkState.FAILED:
        yield Concern.FAILED, f"{route.source}{_ARROW}{route.dest} over {route.name}: {route.state}"


def _find_missing_permissions(topology: Topology) -> Iterator[Finding]:
    """Find refused links that have routes, because messages of these routes are lost after two weeks."""
    for site in topology.sites.values():
        for link in site.links:
            status = site.link_statuses.get(link.name, LinkStatus())
            own = {site.tag, link.peer}
            routes = [
                route
                for route in topology.routes
                if route.bridge.link == link.name and {route.source, route.dest} == own
            ]
            if status.state is LinkState.FAILED and routes:
                text = f"{site.tag} at {link.peer} over {link.name}: {status.last_error or 'refused'}"
                yield Finding(Concern.NO_PERMISSION, (site.tag, link.peer), text, MessageEffect.LOST, tuple(routes))
