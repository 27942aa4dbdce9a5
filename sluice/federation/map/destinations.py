"""Finds the queues that a message with a given key reaches from an exchange, over bindings and routes. Pure.

What a site reports about itself decides. For a
site that wasn't queried, only the binding advertisements of dynamic routes are known.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET

from sluice.federation.links.registry import format_served_name
from sluice.federation.links.states import CARRYING
from sluice.federation.map.topology import Route, Topology
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange, ExchangeType, list_alternates
from sluice.federation.matching.indexes import Arguments, Publication
from sluice.federation.matching.metadata import Trace, append_tag, find_drop_reason
from sluice.federation.matching.typed_values import Headers, to_stored
from sluice.federation.operations import PathView

MAX_STAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteExchanges:
    """The exchanges, bindings and dynamic routes' paths that one site reported."""

    exchanges: Mapping[str, Exchange]
    bindings: Sequence[Binding] = ()
    paths: Sequence[PathView] = ()


class Arrival(NamedTuple):
    """A message at an exchange, with its routing key there."""

    site: str
    exchange: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOutcome:
    """A message at a route. `drop_reason` is empty if it is forwarded, or `is_queued` until the route runs.

    `is_sure` is false if the outcome depends on the bindings of a site that wasn't queried, or on the route's filter.
    """

    route: Route
    drop_reason: str = ""
    is_queued: bool = False
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A message at one exchange, with the queues and routes that it reaches. `routes` are those that led there.

    `exchange` is the exchange that matched the message: the one it arrived at, or an alternate.
    """

    at: Arrival
    exchange: str
    queues: Sequence[str]
    outcomes: Sequence[RouteOutcome]
    routes: Sequence[Route] = ()


def find_destinations(
    topology: Topology, reports: Mapping[str, SiteExchanges], start: Arrival, headers: Headers
) -> Sequence[Stage]:
    """Follow a message from the exchange that it is published to. Returns its stages, the nearest first."""
    follower = _Follower(topology=topology, reports=reports, headers=headers)
    routes: dict[Arrival, tuple[Route, ...]] = {start: ()}
    traces: dict[Arrival, Trace] = {start: ()}
    to_visit, stages = deque([start]), list[Stage]()
    while to_visit and len(stages) < MAX_STAGES:
        at = to_visit.popleft()
        stage = follower.follow(at, traces[at], routes[at])
        stages.append(stage)
        for outcome in stage.outcomes:
            bridge = outcome.route.bridge
            key = at.key if bridge.dest_key is UNSET else bridge.dest_key
            after = Arrival(outcome.route.dest, bridge.dest, key)
            if not outcome.drop_reason and after not in routes:
                routes[after] = (*routes[at], outcome.route)
                traces[after] = append_tag(traces[at], outcome.route.crossing)
                to_visit.append(after)
    return stages


@dataclass(frozen=True, slots=True, kw_only=True)
class _Follower:
    """Follows one message through the exchanges of all sites."""

    topology: Topology
    reports: Mapping[str, SiteExchanges]
    headers: Headers

    def follow(self, at: Arrival, trace: Trace, routes: Sequence[Route]) -> Stage:
        """Find the first exchange that has a queue or route for the message, of this exchange and its alternates."""
        site = self.reports.get(at.site)
        is_known = site is not None and at.exchange in site.exchanges
        for exchange in (
            list_alternates(at.exchange, site.exchanges) if site is not None and is_known else (at.exchange,)
        ):
            queues = [] if site is None else self._matching_queues(site, exchange, at.key)
            outcomes = list(self._try_routes(at._replace(exchange=exchange), queues, trace))
            if queues or outcomes:
                return Stage(at=at, exchange=exchange, queues=queues, outcomes=outcomes, routes=routes)
        return Stage(at=at, exchange=at.exchange, queues=(), outcomes=(), routes=routes)

    def _matching_queues(self, site: SiteExchanges, exchange: str, key: str) -> Sequence[str]:
        type_ = site.exchanges[exchange].type if exchange in site.exchanges else None
        bindings = [binding for binding in site.bindings if binding.exchange == exchange]
        return match_queues(type_, bindings, Publication(exchange=exchange, key=key, headers=self.headers))

    def _try_routes(self, at: Arrival, queues: Sequence[str], trace: Trace) -> Iterator[RouteOutcome]:
        """Yield the routes that match a message here, including those that its trace excludes."""
        for route in self.topology.routes:
            is_taken = self._route_takes(route, at, queues) if route.source == at.site else False
            if is_taken is False:
                continue
            reason = find_drop_reason(trace, route.crossing)
            yield RouteOutcome(
                route=route,
                drop_reason=reason.value if reason else "",
                is_queued=route.state not in CARRYING,
                is_sure=is_taken is True and route.bridge.filter is UNSET,
            )

    def _route_takes(self, route: Route, at: Arrival, queues: Sequence[str]) -> bool | None:
        """Return whether the route takes the message; None if that isn't known."""
        bridge = route.bridge
        if bridge.src_is_queue:
            return bridge.src in queues
        if bridge.src != at.exchange:
            return False
        if bridge.dynamic:
            return self._is_needed_downstream(route, at)
        binding = Binding(exchange=bridge.src, queue="", key=bridge.key)
        publication = Publication(exchange=bridge.src, key=at.key, headers=self.headers)
        return bool(match_queues(self.topology.exchange_type(at.site, at.exchange), [binding], publication))

    def _is_needed_downstream(self, route: Route, at: Arrival) -> bool | None:
        """Return whether a site behind a dynamic route has a matching binding; None if that isn't known."""
        # The source calls the bridge by the second name.
        names = {route.bridge.name, format_served_name(route.bridge.name, route.dest)}
        answer: bool | None = False
        for path in self.reports[at.site].paths if at.site in self.reports else ():
            if path.route not in names or path.exchange != at.exchange or not path.active:
                continue
            origin = self.reports.get(path.origin)
            if origin is None:
                answer = None
            elif self._matching_queues(origin, path.exchange, at.key):
                return True
        return answer


def match_queues(type_: ExchangeType | None, bindings: Sequence[Binding], publication: Publication) -> Sequence[str]:
    """Return the queues that an exchange with these bindings sends a message to; an unknown type counts as topic.

    They are in the order of the bindings.
    """
    index = (type_ or ExchangeType.TOPIC).index_class()
    queues: dict[str, dict[str, Arguments]] = {}
    for binding in bindings:
        # A static route's binding has no arguments here, so it matches all headers.
        arguments = to_stored(binding.arguments or index.match_all_arguments)
        queues.setdefault(binding.queue, {})[binding.key] = arguments
    for queue, keys in queues.items():
        index.add(queue, keys)
    matching = index.matches(publication)
    return [queue for queue in queues if queue in matching]
