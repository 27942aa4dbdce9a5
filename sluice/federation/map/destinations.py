"""Where a message with some key goes from an exchange, over bindings and routes of all sites that were asked. Pure.

It is asked of bindings one by one, as an operator would who has them on paper: for one message that is soon enough.
What a site says of itself decides; of a site that wasn't asked, dynamic routes' wants are all that is known.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET

from sluice.federation.links.registry import served_name
from sluice.federation.links.states import CARRYING
from sluice.federation.map.topology import Route, Topology
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange, ExchangeType, way
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.metadata import Trace, crossed, held_back
from sluice.federation.matching.typed_values import Headers, to_stored
from sluice.federation.operations import WayView

MAX_STAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedExchanges:
    """What one site said: its exchanges, all of its bindings, and its dynamic routes' ways."""

    exchanges: Mapping[str, Exchange]
    bindings: Sequence[Binding] = ()
    ways: Sequence[WayView] = ()


class Arrival(NamedTuple):
    """A message at an exchange, with the key that it has there."""

    site: str
    exchange: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A message at a route: why it doesn't cross, empty where it does; `waits` where the route carries nothing now.

    `is_sure` unless it depends on what isn't known: the bindings of a site that wasn't asked, or the route's filter.
    """

    route: Route
    held: str = ""
    waits: bool = False
    is_sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What becomes of a message where it arrives: queues that get a copy, and routes; `over` those by which it came.

    `exchange` is the one that has somebody for it: of the arrival, or an alternate.
    """

    at: Arrival
    exchange: str
    queues: Sequence[str]
    passages: Sequence[Passage]
    over: Sequence[Route] = ()


def destinations(
    topology: Topology, asked: Mapping[str, AskedExchanges], start: Arrival, headers: Headers
) -> Sequence[Stage]:
    """Follow a message from the exchange that it is published to, the nearest stage first."""
    follower = _Follower(topology=topology, asked=asked, headers=headers)
    over: dict[Arrival, tuple[Route, ...]] = {start: ()}
    traces: dict[Arrival, Trace] = {start: ()}
    to_visit, found = deque([start]), list[Stage]()
    while to_visit and len(found) < MAX_STAGES:
        at = to_visit.popleft()
        stage = follower.stage(at, traces[at], over[at])
        found.append(stage)
        for passage in stage.passages:
            after = _after(passage.route, at)
            if not passage.held and after not in over:
                over[after] = (*over[at], passage.route)
                traces[after] = crossed(traces[at], passage.route.crossing)
                to_visit.append(after)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Follower:
    """Follows one message."""

    topology: Topology
    asked: Mapping[str, AskedExchanges]
    headers: Headers

    def stage(self, at: Arrival, trace: Trace, over: Sequence[Route]) -> Stage:
        """Find the first exchange, of this one and its alternates, that has somebody for the message."""
        site = self.asked.get(at.site)
        is_known = site is not None and at.exchange in site.exchanges
        for exchange in way(at.exchange, site.exchanges) if site is not None and is_known else (at.exchange,):
            queues = [] if site is None else list(dict.fromkeys(self._queues(site, exchange, at.key)))
            passages = list(self._passages(at._replace(exchange=exchange), queues, trace))
            if queues or passages:
                return Stage(at=at, exchange=exchange, queues=queues, passages=passages, over=over)
        return Stage(at=at, exchange=at.exchange, queues=(), passages=(), over=over)

    def _queues(self, site: AskedExchanges, exchange: str, key: str) -> Iterator[str]:
        type_ = site.exchanges[exchange].type if exchange in site.exchanges else None
        for binding in site.bindings:
            if binding.exchange == exchange and takes(type_, binding, key=key, headers=self.headers):
                yield binding.queue

    def _passages(self, at: Arrival, queues: Sequence[str], trace: Trace) -> Iterator[Passage]:
        """Give the routes that a message is put on here, or would be if its trace let it."""
        for route in self.topology.routes:
            wanted = self._is_put_on(route, at, queues) if route.source == at.site else False
            if wanted is False:
                continue
            reason = held_back(trace, route.crossing)
            yield Passage(
                route=route,
                held=reason.value if reason else "",
                waits=route.state not in CARRYING,
                is_sure=wanted is True and route.bridge.filter is UNSET,
            )

    def _is_put_on(self, route: Route, at: Arrival, queues: Sequence[str]) -> bool | None:
        """Whether the route takes it; None where that isn't known."""
        bridge = route.bridge
        if bridge.src_is_queue:
            return bridge.src in queues
        if bridge.src != at.exchange:
            return False
        if bridge.dynamic:
            return self._is_wanted(route, at)
        binding = Binding(exchange=bridge.src, queue="", key=bridge.key)
        return takes(self.topology.type_of(at.site, at.exchange), binding, key=at.key, headers=self.headers)

    def _is_wanted(self, route: Route, at: Arrival) -> bool | None:
        """Whether a site behind a dynamic route wants it; None where that isn't known."""
        names = {route.bridge.name, served_name(route.bridge.name, route.dest)}  # the source knows it by the latter
        answer: bool | None = False
        for each in self.asked[at.site].ways if at.site in self.asked else ():
            if each.route not in names or each.exchange != at.exchange or not each.active:
                continue
            origin = self.asked.get(each.origin)
            if origin is None:
                answer = None
            elif any(True for _ in self._queues(origin, each.exchange, at.key)):
                return True
        return answer


def takes(type_: ExchangeType | None, binding: Binding, *, key: str, headers: Headers) -> bool:
    """Whether a binding takes a message; an exchange that isn't known is taken for a topic exchange."""
    index = (type_ or ExchangeType.TOPIC).index_class()
    # A static route's binding has no arguments here, and asks for nothing.
    index.add(binding.queue, {binding.key: to_stored(binding.arguments or index.takes_all)})
    return bool(index.matches(Publication(exchange=binding.exchange, key=key, headers=headers)))


def _after(route: Route, at: Arrival) -> Arrival:
    key = at.key if route.bridge.dest_key is UNSET else route.bridge.dest_key
    return Arrival(route.dest, route.bridge.dest, key)
