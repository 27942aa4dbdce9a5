"""Sites with dynamic bridges between them, and control queues that lose, repeat and reorder. No AWS, no clock."""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sluice.codec import encode
from sluice.federation.dynamic.ops import BindingAdvertisement, DynamicOp, decode_op
from sluice.federation.dynamic.paths import (
    choose_active_bridges,
    choose_bridges_in_use,
    collect_advertised_bindings,
    find_origins,
)
from sluice.federation.dynamic.state import ROUTES, DynamicEvent, DynamicRoutes, OutgoingOp, PulledRoute, ServedRoute
from sluice.federation.dynamic.steps import (
    add_pull,
    add_served,
    handle_heartbeat,
    receive_op,
    remove_pull,
    remove_served,
    set_link_up,
    set_local_bindings,
    step,
)
from sluice.federation.links.registry import format_served_name
from sluice.federation.matching.metadata import (
    DEFAULT_MAX_HOPS,
    Crossing,
    Sites,
    Trace,
    append_tag,
    find_drop_reason,
)

EXCHANGE = "amq.direct"
MAX_ROUNDS = 60
MAX_CANCELLATIONS = 20_000
HEARTBEAT_MS = 60_000


class Edge(NamedTuple):
    """A bridge: messages go from `source` to `dest`, which pulls."""

    dest: str
    source: str
    number: int = 0
    max_hops: int = DEFAULT_MAX_HOPS
    tag: str | None = None

    @property
    def name(self) -> str:
        return f"{self.dest}-from-{self.source}-{self.number}"

    @property
    def served(self) -> str:
        return format_served_name(self.name, self.dest)


class Flight(NamedTuple):
    """A copy of a message that comes to a site."""

    here: str
    key: str
    trace: Trace = ()
    to: Sites | None = None


@dataclass
class Fabric:
    """`queues` holds the bindings that really are; `edges` the bridges, by name; `down` those whose link is down."""

    tags: list[str]
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    as_json: bool = True
    expires_ms: int | None = None
    sites: dict[str, DynamicRoutes] = field(default_factory=dict)
    edges: dict[str, Edge] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    queues: dict[str, set[tuple[str, BindingAdvertisement]]] = field(default_factory=dict)
    channels: dict[tuple[str, str], deque[DynamicOp]] = field(
        default_factory=dict
    )  # by bridge and the site that is told
    ignored: Counter[str] = field(default_factory=Counter)
    told: int = 0
    epoch: int = 0
    now_ms: int = 0

    def __post_init__(self) -> None:
        for tag in self.tags:
            self.sites[tag] = DynamicRoutes(here=tag, exchange=EXCHANGE)
            self.queues[tag] = set()

    # What happens

    def happen(self, site: str, event: DynamicEvent) -> None:
        taken = step(self.sites[site], event)
        self.sites[site] = taken.routes
        if taken.ignored is not None:
            self.ignored[taken.ignored] += 1
        for sending in taken.outgoing_ops:
            self._post(site, sending)

    def _post(self, site: str, sending: OutgoingOp) -> None:
        edge = self.edges.get(sending.op.bridge)
        if edge is None or edge.name in self.down:
            return
        to = edge.dest if site == edge.source else edge.source
        self.told += 1
        self.channels.setdefault((edge.name, to), deque()).append(sending.op)

    def connect(self, edge: Edge, *, at: Iterable[str] | None = None) -> None:
        """Makes the bridge known at both ends, or at some of them."""
        self.edges[edge.name] = edge
        self.epoch += 1
        up = edge.name not in self.down
        ends = {edge.dest, edge.source} if at is None else set(at)
        if edge.dest in ends:
            pull = PulledRoute(
                bridge=edge.name,
                link=edge.name,
                peer=edge.source,
                max_hops=edge.max_hops,
                epoch=self.epoch,
                up=up,
            )
            self.happen(edge.dest, add_pull(pull))
        if edge.source in ends:
            served = ServedRoute(
                bridge=edge.name,
                link=edge.served,
                peer=edge.dest,
                tag=edge.tag or edge.source,
                max_hops=edge.max_hops,
                epoch=self.epoch,
                up=up,
                down_since_ms=None if up else self.now_ms,
                expires_ms=self.expires_ms,
            )
            self.happen(edge.source, add_served(served))

    def disconnect(self, name: str) -> None:
        edge = self.edges.pop(name)
        self.down.discard(name)
        self.happen(edge.dest, remove_pull(name))
        self.happen(edge.source, remove_served(edge.served))
        for channel in [each for each in self.channels if each[0] == name]:
            del self.channels[channel]

    def turn(self, name: str, *, up: bool) -> None:
        edge = self.edges[name]
        (self.down.discard if up else self.down.add)(name)
        for channel in [each for each in self.channels if each[0] == name]:
            del self.channels[channel]
        self.happen(edge.dest, set_link_up(edge.name, up=up, now_ms=self.now_ms))
        self.happen(edge.source, set_link_up(edge.served, up=up, now_ms=self.now_ms))

    def bind(self, site: str, key: str, queue: str = "q") -> None:
        self.queues[site].add((queue, BindingAdvertisement(key)))
        self.survey(site)

    def unbind(self, site: str, key: str, queue: str = "q") -> None:
        self.queues[site].discard((queue, BindingAdvertisement(key)))
        self.survey(site)

    def survey(self, site: str) -> None:
        """What a site's queues are bound by is looked at as a whole."""
        self.happen(site, set_local_bindings(frozenset(want for _, want in self.queues[site])))

    def restart(self, site: str) -> None:
        """All that is known is what is stored."""
        self.sites[site] = ROUTES.unpack(ROUTES.pack({EXCHANGE: self.sites[site]}))[EXCHANGE]

    def delete(self, site: str) -> None:
        """The site begins anew, with what is declared and bound there."""
        self.sites[site] = DynamicRoutes(here=site, exchange=EXCHANGE)
        self.survey(site)
        for edge in list(self.edges.values()):
            if site in {edge.dest, edge.source}:
                self.connect(edge, at=[site])

    # Control queues

    def deliver(self, *, loss: float = 0.0, repeat: float = 0.0, reorder: float = 0.0) -> bool:
        """One control message of a queue by chance; False where there is none."""
        waiting = [name for name, channel in self.channels.items() if channel]
        if not waiting:
            return False
        name = self.chance.choice(waiting)
        channel = self.channels[name]
        if len(channel) > 1 and self.chance.random() < reorder:
            channel.rotate(-1)
        op = channel.popleft()
        if self.chance.random() < repeat:
            channel.insert(self.chance.randint(0, len(channel)), op)
        if self.chance.random() >= loss:
            bridge, to = name
            edge = self.edges[bridge]
            peer = edge.dest if to == edge.source else edge.source
            self.happen(to, receive_op(peer, decode_op(encode(op)) if self.as_json else op))
        return True

    def settle(self) -> int:
        """Heartbeats until nothing changes any more; how many it took."""
        for rounds in range(1, MAX_ROUNDS):
            before = self.outcome()
            self.beat()
            while self.deliver():
                assert self.told < MAX_CANCELLATIONS, "they go on and on"
            if rounds > 1 and self.outcome() == before:
                return rounds
        raise AssertionError("it doesn't settle")

    def beat(self) -> None:
        self.now_ms += HEARTBEAT_MS
        for site in self.tags:
            self.happen(site, handle_heartbeat(self.now_ms))

    def outcome(self) -> list[object]:
        """All that is of interest to others than the protocol."""
        return [
            (dict(routes.former), [(served.advertised_routes, served.version) for served in routes.served.values()])
            for routes in self.sites.values()
        ]

    # Messages

    def publish(self, site: str, key: str) -> Counter[str]:
        """How often each site's queues with this key get a message; no site sees it twice."""
        flights, visits = deque([Flight(site, key)]), Counter[str]()
        got = Counter[str]()
        while flights:
            flight = flights.popleft()
            visits[flight.here] += 1
            got += self.getting(flight)
            flights.extend(on for edge, on in self.sent_on(flight) if edge not in self.down)
        assert set(visits.values()) == {1}, f"{visits} of {key} from {site}"
        return got

    def getting(self, flight: "Flight") -> Counter[str]:
        """Count the site where a message has come to, if its queues get it."""
        is_bound = any(want.key == flight.key for _, want in self.queues[flight.here])
        return Counter({flight.here: 1} if is_bound and (flight.to is None or flight.here in flight.to) else {})

    def sent_on(self, flight: "Flight") -> Iterator[tuple[str, "Flight"]]:
        """Find the bridges that the site puts a message on, and what comes out there."""
        here, trace = flight.here, flight.trace
        assert here not in trace, f"{flight.key} comes to {here} by {trace}"
        routes, is_addressed = self.sites[here], flight.to is not None
        ways = choose_bridges_in_use(routes)
        for name, served in routes.served.items():
            edge = self.edges[served.bridge]
            if BindingAdvertisement(flight.key) not in collect_advertised_bindings(routes, name, ways):
                continue
            origins = find_origins(ways, name)
            crossing = Crossing(peer=served.peer, tag=served.tag, max_hops=edge.max_hops, origins=origins)
            to = origins.difference(trace) if flight.to is None else origins & flight.to
            if to and find_drop_reason(trace, crossing, addressed=is_addressed) is None:
                yield edge.name, Flight(served.peer, flight.key, append_tag(trace, crossing, addressed=True), to)

    # What should be

    def check(self) -> None:
        """What is bound, and who gets what, as the topology has it."""
        expected = {(tag, origin): self._next(tag, origin) for tag in self.tags for origin in self.tags}
        for tag in self.tags:
            self._check_bound(tag, expected)
        keys = {want.key for bound in self.queues.values() for _, want in bound}
        for key in sorted(keys):
            for tag in self.tags:
                assert self.publish(tag, key) == self._getting(tag, key), f"{key} from {tag}"

    def _check_bound(self, tag: str, expected: dict[tuple[str, str], Edge | None]) -> None:
        routes = self.sites[tag]
        ways = choose_active_bridges(routes)
        by_edge: dict[str, set[BindingAdvertisement]] = {name: set() for name in routes.served}
        for origin in self.tags:
            edge = expected[tag, origin]
            if edge is None:
                assert self.down or origin not in ways, f"{tag} has a way to {origin}, and there is none"
                if origin in ways:  # what was known when the link went down
                    by_edge[ways[origin]] |= routes.served[ways[origin]].advertised_routes[origin].bindings
                continue
            assert ways.get(origin) == edge.served, f"{tag} to {origin}: {ways.get(origin)}, not {edge.served}"
            by_edge[edge.served] |= {want for _, want in self.queues[origin]}
        for name, wants in by_edge.items():
            assert collect_advertised_bindings(routes, name, ways) == wants, f"{tag}: {name}"

    def _getting(self, tag: str, key: str) -> Counter[str]:
        wanting = [origin for origin in self.tags if any(want.key == key for _, want in self.queues[origin])]
        return Counter(origin for origin in wanting if origin == tag or self._next(tag, origin) is not None)

    def _next(self, tag: str, origin: str) -> Edge | None:
        """The bridge that the site's messages for the origin take first: of the shortest ways the first by tags."""
        ways = [way for way in self._ways(tag, origin) if all(edge.max_hops > place for place, edge in enumerate(way))]
        if not ways or tag == origin:
            return None
        return min(ways, key=lambda way: (len(way), [(edge.dest, -edge.max_hops, edge.served) for edge in way]))[0]

    def _ways(self, tag: str, origin: str, before: tuple[str, ...] = ()) -> Iterator[tuple[Edge, ...]]:
        """All ways over links that are up and no site twice."""
        if tag == origin:
            yield ()
            return
        for edge in self._up_from(tag):
            if edge.dest not in (*before, tag):
                for rest in self._ways(edge.dest, origin, (*before, tag)):
                    yield (edge, *rest)

    def _up_from(self, tag: str) -> list[Edge]:
        return [edge for edge in self.edges.values() if edge.source == tag and edge.name not in self.down]
