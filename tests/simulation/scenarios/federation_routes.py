"""Which sites and routes a simulated federation has, and by hand who gets what: the slow, literal oracle.

What a key means to an exchange is said here again, for the few patterns that a plan has.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from sluice.federation.declared import BindingDeclaration, Declared
from sluice.federation.links.links import Bridge, Link, RouteKind
from tests.simulation.kernel.world import Site
from tests.simulation.scenarios.federation_sites import BOUND_PREFIX, address_of

# Tags that begin like others, and two sites of one account.
PLACES = {
    "S1": Site("eu-central-1", "111111111111"),
    "S10": Site("us-east-1", "222222222222"),
    "S": Site("eu-west-1", "111111111111"),
}
ACCOUNTS = ("111111111111", "222222222222")

TOPIC, DIRECT, FANOUT = "amq.topic", "amq.direct", "amq.fanout"
KEYS = ("a", "a.b", "b")
# What each pattern admits of these keys.
ADMITTED: Mapping[str, Mapping[str, Sequence[str]]] = {
    TOPIC: {"#": KEYS, "a.#": ("a", "a.b"), "*": ("a", "b"), "b": ("b",)},
    DIRECT: {"a": ("a",), "a.b": ("a.b",), "b": ("b",)},
    FANOUT: {"": KEYS},
}
WIDE = {TOPIC: ("#", "a.#"), DIRECT: ("a",), FANOUT: ("",)}  # what static routes ask for

STANDARD_QUEUE, FIFO_QUEUE, FEED = f"{BOUND_PREFIX}s", f"{BOUND_PREFIX}f.fifo", f"{BOUND_PREFIX}feed"
CONSUMED = (STANDARD_QUEUE, FIFO_QUEUE)
FED, TEMPORARY = 0.3, 0.4  # of the plans have a queue route, and one that an operator lays

# From site to site, by their places in a row of three; the more routes, the longer it takes to say so much.
SHAPES: Sequence[Sequence[tuple[int, int]]] = (
    *[[(0, 1)]] * 3,
    *[[(0, 1), (1, 0)]] * 3,
    [(0, 1), (1, 2)],
    [(0, 1), (0, 2)],
    [(0, 2), (1, 2)],
    [(0, 1), (1, 2), (2, 0)],
    [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)],
)


def admits(exchange: str, pattern: str, key: str) -> bool:
    """Whether a binding gets what has this key."""
    return key in ADMITTED[exchange][pattern]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A way from a site to another. `key` is a static one's, `pushed` where the source declares it.

    One that doesn't last is laid by an operator, and taken away.
    """

    source: str
    dest: str
    exchange: str
    kind: RouteKind
    key: str = ""
    fifo: bool = True
    pushed: bool = False
    lasts: bool = True

    @property
    def declared_at(self) -> str:
        """The site that declares it."""
        return self.source if self.pushed else self.dest

    @property
    def peer(self) -> str:
        """The site that its link goes to."""
        return self.dest if self.pushed else self.source

    @property
    def link(self) -> str:
        """Its link's name: routes between the same sites share it."""
        return f"to-{self.peer}"

    @property
    def name(self) -> str:
        """Its own."""
        return f"{self.source}-{self.dest}-{self.exchange}-{self.kind}"

    def over(self) -> Link:
        """Spell its link as it is declared."""
        return Link(name=self.link, peer=self.peer, endpoints=(address_of(self.peer, PLACES[self.peer]).endpoint,))

    def bridge(self) -> Bridge:
        """Spell it as it is declared."""
        is_queue = self.kind is RouteKind.QUEUE
        return Bridge(
            name=self.name,
            link=self.link,
            src=FEED if is_queue else self.exchange,
            dest=self.exchange,
            key=self.key,
            src_is_queue=is_queue,
            src_is_local=self.pushed,
            dynamic=self.kind is RouteKind.DYNAMIC,
            fifo=self.fifo,
        )

    def takes(self, exchange: str, key: str) -> bool:
        """Whether a message goes over it; over a dynamic one where somebody behind it wants it."""
        if self.exchange != exchange or self.kind is RouteKind.QUEUE:
            return False
        return self.kind is RouteKind.DYNAMIC or admits(exchange, self.key, key)


@dataclass(slots=True, kw_only=True)
class Bound:
    """A binding, from when on it is asked for and until when it may be there. `until` None is for good."""

    site: str
    queue: str
    exchange: str
    pattern: str
    since: float = 0.0
    until: float | None = None
    lasts: bool = True

    def declaration(self) -> BindingDeclaration:
        """Spell it as it is declared."""
        return BindingDeclaration(exchange=self.exchange, queue=self.queue, key=self.pattern)


@dataclass(slots=True, kw_only=True)
class Plan:
    """The sites, by their tags in a row, their routes, and the bindings of their queues."""

    tags: Sequence[str]
    exchanges: Sequence[str]
    routes: Sequence[Route]
    bindings: list[Bound]

    def declared(self, tag: str) -> Declared:
        """What a site's deployment declares."""
        routes = [route for route in self.routes if route.declared_at == tag and route.lasts]
        return Declared(
            bindings=tuple(binding.declaration() for binding in self.bindings if binding.site == tag),
            links=tuple({route.link: route.over() for route in routes}.values()),
            routes=tuple(route.bridge() for route in routes),
        )

    def getting(self, tag: str, exchange: str, key: str) -> set[tuple[str, str]]:
        """Find the queues, by site and name, that get a message that is published at a site, once all is at rest."""
        return {
            (binding.site, binding.queue)
            for site in self._reached([tag], exchange, key)
            for binding in self.bindings
            if (binding.site, binding.exchange, binding.lasts) == (site, exchange, True)
            and admits(exchange, binding.pattern, key)
        }

    def _reached(self, sites: list[str], exchange: str, key: str) -> list[str]:
        for site in sites:  # it grows
            sites += [
                route.dest
                for route in self.routes
                if route.source == site and route.dest not in sites and route.takes(exchange, key) and route.lasts
            ]
        return sites

    @property
    def feeds(self) -> Iterator[Route]:
        """The queue routes."""
        return (route for route in self.routes if route.kind is RouteKind.QUEUE)


def drawn(chance: Random) -> Plan:
    """Draw sites, routes and what is bound throughout."""
    shape = chance.choice(SHAPES)
    tags = chance.sample(list(PLACES), 1 + max(max(pair) for pair in shape))
    exchange = chance.choice([TOPIC, TOPIC, DIRECT, FANOUT])
    kind = chance.choice([RouteKind.STATIC, RouteKind.DYNAMIC])
    several_ways = shape is SHAPES[-1]
    # By several static ways a message comes once where FIFO queues know its id: docs/federation.md says so.
    fifo = chance.random() < 0.7 or (several_ways and kind is RouteKind.STATIC)
    routes = [
        Route(
            source=tags[source],
            dest=tags[dest],
            exchange=exchange,
            kind=kind,
            key=chance.choice(WIDE[exchange]) if kind is RouteKind.STATIC else "",
            fifo=fifo,
            pushed=kind is RouteKind.STATIC and chance.random() < 0.3,
        )
        for source, dest in shape
    ]
    if chance.random() < FED:
        source, dest = tags[:2]
        routes.append(Route(source=source, dest=dest, exchange=exchange, kind=RouteKind.QUEUE))
    other = chance.choice([each for each in (TOPIC, DIRECT, FANOUT) if each != exchange])
    bindings = [
        Bound(site=tag, queue=queue, exchange=exchange, pattern=chance.choice(list(ADMITTED[exchange])))
        for tag in tags
        for queue in CONSUMED
    ]
    bindings.append(Bound(site=tags[0], queue=STANDARD_QUEUE, exchange=other, pattern=next(iter(ADMITTED[other]))))
    if chance.random() < TEMPORARY:
        laid = Route(
            source=tags[1],
            dest=tags[0],
            exchange=other,
            kind=RouteKind.STATIC,
            key=WIDE[other][0],
            fifo=fifo,
            pushed=chance.random() < 0.5,
            lasts=False,
        )
        routes.append(laid)
    return Plan(tags=tags, exchanges=(exchange, exchange, exchange, exchange, other), routes=routes, bindings=bindings)
