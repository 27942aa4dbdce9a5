"""What is to be done so that sites become what a topology file says, in an order that loses no message. Pure.

A plan follows from what the sites are now, and each of its steps may be done twice: so whoever comes by, after whatever
crash, makes a new plan and goes on where the last one stopped. What is new is made first, from peers to routes. What
goes does so once all routes of the file carry messages, and a route's ends go once it has sent what it holds.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec.structs import replace

from sluice.errors import BadBinding, BadRoute, Malformed
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link, check_bridge, check_link
from sluice.federation.links.peers import Peer, check_peer, no_peer
from sluice.federation.links.states import LinkState
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange
from sluice.federation.topology.desired import DesiredSite, DesiredTopology
from sluice.federation.topology.entries import (
    BINDING,
    EXCHANGE,
    LINK,
    PEER,
    ROUTE,
    Entries,
    Entry,
    Key,
    by_key,
    changed_fields,
    cost_of,
    creation,
    deletion,
    differ,
    key_of,
    shown,
)
from sluice.federation.topology.states import SiteState, closing
from sluice.operations import Operation

MADE_IN_ORDER = (PEER, EXCHANGE, BINDING, LINK, ROUTE)  # what an entry needs comes before it
TAKEN_IN_ORDER = (ROUTE, LINK, BINDING, EXCHANGE, PEER)
STANDARD = by_key(STANDARD_EXCHANGES)


class Act(StrEnum):
    """What a step does with an entry."""

    ADD = "add"
    CHANGE = "change"
    REMAKE = "remake"  # it goes, to be made again by a later step
    REMOVE = "remove"


class Stage(IntEnum):
    """When a step's turn comes."""

    MAKE = 0
    MAKE_WAY = 1  # what is remade goes
    REMAKE = 2  # what has a name, or a way, of something that had to go
    CLOSE = 3
    REMOVE = 4


class Until(StrEnum):
    """What a stage waits for."""

    NOTHING = "nothing"
    GONE = "gone"  # all that is closing at these sites
    CARRYING = "carrying"  # the file's routes


WAITS = {
    Stage.MAKE: Until.NOTHING,
    Stage.MAKE_WAY: Until.NOTHING,
    Stage.REMAKE: Until.GONE,
    Stage.CLOSE: Until.CARRYING,
    Stage.REMOVE: Until.GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One thing that a site is asked for.

    `costs` says what becomes of messages meanwhile, where they aren't simply carried on.
    """

    site: str
    act: Act
    what: str
    name: str
    change: str = ""
    costs: str = ""
    operation: Operation[Any]

    @property
    def entry(self) -> tuple[str, str, str]:
        """Of which site, what, and its name."""
        return self.site, self.what, self.name

    @property
    def takes_away(self) -> bool:
        """Whether the entry goes, for good or to be remade."""
        return self.act in {Act.REMOVE, Act.REMAKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Steps in order, to be begun when what the stage waits for is so."""

    until: Until
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What a site has and the file hasn't, and why it stays."""

    site: str
    what: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What of the file can't be had; as long as there is one, nothing is done."""

    place: str
    cause: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPlan:
    """All that is to be done. `routes` are the file's, by site."""

    stages: tuple[PlannedStage, ...]
    leftovers: tuple[Leftover, ...]
    conflicts: tuple[Conflict, ...]
    routes: Mapping[str, tuple[str, ...]]

    @property
    def steps(self) -> list[PlannedStep]:
        """In the order in which they are done."""
        return [step for stage in self.stages for step in stage.steps]

    @property
    def takes_away(self) -> bool:
        """Whether something goes, for good or to be remade."""
        return any(step.takes_away for step in self.steps)


def plan_of(desired: DesiredTopology, states: Mapping[str, SiteState], *, prune: bool) -> TopologyPlan:
    """Compare what a file says with what its sites are. `states` has all of the file's sites, by the file's tags.

    With `prune` what the file hasn't goes, else it is left over, and in any case where the deployment declares it.
    """
    sites = {tag: _Comparison(tag, states[tag], prune=prune) for tag in sorted(desired.sites)}
    for tag, site in sites.items():
        site.take_in(desired.sites[tag], states)
    for site in sites.values():
        site.check(sites)
    turns = sorted((turn for site in sites.values() for turn in site.turns()), key=lambda turn: turn[:2])
    stages = [
        PlannedStage(until=WAITS[stage], steps=tuple(step for at, _, step in turns if at is stage)) for stage in Stage
    ]
    return TopologyPlan(
        stages=tuple(stage for stage in stages if stage.steps),
        leftovers=tuple(each for site in sites.values() for each in site.leftovers()),
        conflicts=tuple(each for site in sites.values() for each in site.conflicts),
        routes={tag: tuple(name for what, name in sorted(site.wanted) if what == ROUTE) for tag, site in sites.items()},
    )


Turn = tuple[Stage, tuple[int, int, str, str], PlannedStep]  # when, and in which order among those of the stage


class _Comparison:
    """One site: what is wanted there beside what is there."""

    def __init__(self, tag: str, state: SiteState, *, prune: bool) -> None:
        self.tag, self.state, self.prune = tag, state, prune
        self.actual: Entries = state.entries
        self.wanted: dict[Key, Entry] = {}
        self.places: dict[Key, str] = {}
        self.conflicts: list[Conflict] = []

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Note what is wrong at this place."""
        try:
            yield
        except (BadBinding, BadRoute, Malformed) as error:
            self.conflicts.append(Conflict(place=f"sites.{self.tag}.{place}", cause=str(error)))

    def take_in(self, site: DesiredSite, states: Mapping[str, SiteState]) -> None:
        """Read what is wanted, with all that the file's other sites say of themselves."""
        here, addresses = self.state.view.address, {tag: each.view.address for tag, each in states.items()}
        if here.tag != self.tag:
            cause = f"the site at {site.at} has the tag {here.tag}"
            self.conflicts.append(Conflict(place=f"sites.{self.tag}.at", cause=cause))
            return
        for number, peer in enumerate(site.peers):
            with self.at(place := f"peers[{number}]"):
                self.want(peer.peer(addresses.get(peer.tag)), place)
        for number, exchange in enumerate(site.exchanges):
            with self.at(place := f"exchanges[{number}]"):
                if STANDARD.get(key_of(exchange), exchange) != exchange:
                    raise BadBinding(f"{exchange.name}: every site has this exchange, and none changes it")
                if exchange not in STANDARD_EXCHANGES:
                    self.want(exchange, place)
        for number, binding in enumerate(site.bindings):
            with self.at(place := f"bindings[{number}]"):
                self.want(replace(binding, queue=self.state.shown_queue(binding.queue)), place)
        for number, link in enumerate(site.links):
            with self.at(place := f"links[{number}]"):
                self.want(link.link(here=here, peer=addresses.get(link.peer)), place)
        for number, route in enumerate(site.routes):
            with self.at(place := f"routes[{number}]"):
                self.want(route, place)

    def want(self, entry: Entry, place: str) -> None:
        """Want an entry. Raises `Malformed` for what is wanted already."""
        key = key_of(entry)
        if key in self.wanted:
            raise Malformed(f"the same {key[0]} as {self.places[key]}: {key[1]}")
        self.wanted[key], self.places[key] = entry, place

    # What can't be had

    @cached_property
    def there(self) -> Entries:
        """What will be there in the end."""
        stays = {key: each for key, each in self.actual.items() if key in self.state.declared or not self.prune}
        return {**STANDARD, **stays, **self.wanted}

    def check(self, sites: Mapping[str, "_Comparison"]) -> None:
        """Note what the site would refuse, or would do otherwise than the file says."""
        with self.at("exchanges"):
            self.exchanges_in_order()
        done: list[Entry] = []
        for key, entry in self.wanted.items():
            with self.at(self.places[key]):
                was = self.actual.get(key)
                if was is not None and differ(was, entry) and key in self.state.declared:
                    raise BadRoute(
                        f"{key[1]}: the deployment declares it otherwise, in cdk.json: {changed_fields(was, entry)}"
                    )
                match entry:
                    case Peer():
                        others = [each for each in done if isinstance(each, Peer)]
                        check_peer(entry, here=self.tag, accounts=self.state.view.peer_accounts, existing=others)
                    case Exchange():
                        self.check_exchange(entry, was)
                    case BindingDeclaration():
                        self.check_binding(entry)
                    case Link():
                        check_link(entry, here=self.tag, existing=[each for each in done if isinstance(each, Link)])
                        self.check_link(entry, was)
                    case Bridge():
                        self.check_route(entry, sites, others=[each for each in done if isinstance(each, Bridge)])
            done.append(entry)

    def exchanges_in_order(self) -> list[str]:
        """Return the names of all exchanges, each after its alternate. Raises `BadBinding`."""
        exchanges = [each for each in {**self.actual, **self.wanted}.values() if isinstance(each, Exchange)]
        alternates = {each.name: {each.alternate or each.name} - {each.name} for each in exchanges}
        try:
            return list(TopologicalSorter(alternates).static_order())
        except CycleError as error:
            raise BadBinding(f"each is the other's alternate: {', '.join(error.args[1])}") from None

    def need_exchange(self, name: str) -> Exchange:
        """Find the exchange. Raises `BadBinding` where there will be none of this name."""
        found = self.there.get((EXCHANGE, name))
        if not isinstance(found, Exchange):
            raise BadBinding(f"no such exchange at {self.tag}: {name}")
        return found

    def check_exchange(self, exchange: Exchange, was: Entry | None) -> None:
        """Check that it can be had, being what it was. Raises `BadBinding`."""
        if was is not None and was != exchange:
            raise BadBinding(
                f"{exchange.name}: {changed_fields(was, exchange)}: an exchange isn't changed, as what is published"
                " meanwhile would be lost: give the new one another name"
            )
        if exchange.alternate is not None:
            self.need_exchange(exchange.alternate)

    def check_binding(self, binding: BindingDeclaration) -> None:
        """Check that the site would take it. Raises `BadBinding`."""
        binding.binding().check(self.need_exchange(binding.exchange).type)
        queues = self.state.queues
        if queues.named(binding.queue) is None and not any(
            fnmatchcase(binding.queue, each) for each in queues.patterns
        ):
            patterns = ", ".join(queues.patterns) or "none"
            raise BadBinding(
                f"{binding.queue}: {self.tag} may use no such queue; federation.queue_names has {patterns}"
            )

    def check_link(self, link: Link, was: Entry | None) -> None:
        """Check that its peer is one, and that nobody else's routes would go with what it was. Raises `BadRoute`."""
        if (PEER, link.peer) not in self.there:
            raise BadRoute(f"{link.name}: {link.peer} is no peer of {self.tag}: it goes into sites.{self.tag}.peers")
        used = {each.link for each in self.there.values() if isinstance(each, Bridge)}
        if not link.durable and link.name not in used:
            raise BadRoute(f"{link.name}: it isn't durable, and goes with its last route: there is none")
        if was is None or not differ(was, link) or self.prune:
            return
        others = [each.name for each in self.routes_over(link.name) if key_of(each) not in self.wanted]
        if others:
            raise BadRoute(
                f"{link.name}: {changed_fields(was, link)}: with the old link routes would go that the file hasn't: "
                + ", ".join(others)
            )

    def check_route(self, route: Bridge, sites: Mapping[str, "_Comparison"], *, others: list[Bridge]) -> None:
        """Check that both its ends are there, and that the peer lets it. Raises `BadRoute` or `BadBinding`."""
        links = [each for each in self.there.values() if isinstance(each, Link)]
        check_bridge(route, links=links, existing=others)
        stays = [each for key, each in self.there.items() if key not in self.wanted]
        for other in stays:
            if isinstance(other, Bridge) and other.way == route.way:
                raise BadRoute(f"{route.name}: it goes the way of {other.name}, which the file hasn't")
        [peer] = [each.peer for each in links if each.name == route.link]
        there = sites.get(peer)
        source, dest = (self, there) if route.src_is_local else (there, self)
        exchanges = [] if dest is None else [dest.need_exchange(route.dest)]
        if source is not None and not route.src_is_queue:
            exchanges.append(source.need_exchange(route.src))
        if route.dynamic and len({each.type for each in exchanges}) > 1:
            types = " and ".join(sorted(each.type.value for each in exchanges))
            raise BadRoute(f"{route.name}: {route.src} is {types} at its two ends: a dynamic route needs one type")
        if there is None:
            return
        rules = there.there.get((PEER, self.tag))
        if not isinstance(rules, Peer):
            raise BadRoute(f"{route.name}: at {peer}, {no_peer(self.tag)}")
        refusal = rules.push_refusal(route.dest) if route.src_is_local else rules.refusal_of(route)
        if refusal is not None:
            raise BadRoute(f"{route.name}: at {peer}, {refusal}")

    # What is to be done

    def routes_over(self, link: str) -> list[Bridge]:
        """Return the site's own routes over a link, as they are."""
        return [each for each in self.actual.values() if isinstance(each, Bridge) and each.link == link]

    def leftovers(self) -> Iterator[Leftover]:
        """Say what stays though the file hasn't it."""
        for key in sorted(self.state.kept.keys() - self.wanted.keys()):
            is_declared = key in self.state.declared
            if is_declared or not self.prune:
                reason = "the deployment declares it" if is_declared else "--prune takes it away"
                yield Leftover(site=self.tag, what=key[0], name=key[1], reason=reason)

    def turns(self) -> Iterator[Turn]:
        """Say what is to be done at this site, and when."""
        if self.conflicts:
            return
        going = set(closing(self.state.view))
        late_links = {
            entry.name
            for key, entry in self.wanted.items()
            if isinstance(entry, Link) and (key in going or differ(self.actual.get(key, entry), entry))
        }
        gone = [each for key, each in self.state.kept.items() if key not in self.there]
        ways = {each.way for each in self.wanted.values() if isinstance(each, Bridge)}
        for entry in gone:
            makes_way = isinstance(entry, Bridge) and entry.way in ways
            if makes_way or (isinstance(entry, Bridge) and entry.link in late_links):
                yield self.taken_away(entry, Stage.MAKE_WAY, Act.REMAKE if makes_way else Act.REMOVE)
            else:
                stage = Stage.CLOSE if isinstance(entry, Link | Bridge) else Stage.REMOVE
                yield self.taken_away(entry, stage, Act.REMOVE)
        going_ways = {each.way for each in self.state.view.bridges if each.state == LinkState.CLOSING}
        taken = going_ways | {each.way for each in gone if isinstance(each, Bridge)}
        for key, entry in self.wanted.items():
            waits = key in going or (isinstance(entry, Bridge) and (entry.way in taken or entry.link in late_links))
            yield from self.turns_of(entry, waits=waits, late_links=late_links)

    def turns_of(self, entry: Entry, *, waits: bool, late_links: set[str]) -> Iterator[Turn]:
        """Say what is to be done for an entry that is wanted. One that isn't there `waits` where others have to go."""
        was = self.actual.get(key_of(entry))
        if was is None:
            yield self.made(entry, Stage.REMAKE if waits else Stage.MAKE)
        elif isinstance(entry, Bridge) and isinstance(was, Bridge) and entry.link in late_links:
            if was.link not in late_links:  # else it goes with its link
                yield self.taken_away(was, Stage.MAKE_WAY, Act.REMAKE)
            yield self.made(entry, Stage.REMAKE)
        elif isinstance(entry, Bridge) and isinstance(was, Bridge) and differ(was, entry) and was.can_become(entry):
            yield self.made(entry, Stage.MAKE, was=was)
        elif isinstance(was, Link | Bridge) and differ(was, entry):
            yield self.taken_away(was, Stage.MAKE_WAY, Act.REMAKE)
            yield self.made(entry, Stage.REMAKE)
        elif isinstance(entry, Peer) and isinstance(was, Peer):
            # What it may no longer closes its routes at once: that comes when all is there that takes their place.
            both = entry.with_rules_of(was)
            if differ(was, both):
                yield self.made(both, Stage.MAKE, was=was)
            if differ(both, entry):
                yield self.made(entry, Stage.CLOSE, was=both)
        elif differ(was, entry):
            yield self.made(entry, Stage.MAKE, was=was)

    def made(self, entry: Entry, stage: Stage, *, was: Entry | None = None) -> Turn:
        """Plan to make an entry, or to change it from what it was."""
        act, change = (Act.ADD, shown(entry)) if was is None else (Act.CHANGE, changed_fields(was, entry))
        what, name = key_of(entry)
        step = PlannedStep(site=self.tag, act=act, what=what, name=name, change=change, operation=creation(entry, was))
        rank = (TAKEN_IN_ORDER if stage is Stage.CLOSE else MADE_IN_ORDER).index(what)
        return stage, (rank, self.place(entry), self.tag, name), step

    def taken_away(self, entry: Entry, stage: Stage, act: Act) -> Turn:
        """Plan to take an entry away."""
        wanted, (what, name) = self.wanted.get(key_of(entry)), key_of(entry)
        step = PlannedStep(
            site=self.tag,
            act=act,
            what=what,
            name=name,
            change=shown(entry) if wanted is None else changed_fields(entry, wanted),
            costs=cost_of(entry) if act is Act.REMAKE else "",
            operation=deletion(entry),
        )
        return stage, (TAKEN_IN_ORDER.index(what), -self.place(entry), self.tag, name), step

    def place(self, entry: Entry) -> int:
        """Say where an exchange stands in the order of alternates; nothing else has an order among its kind."""
        return self.exchanges_in_order().index(entry.name) if isinstance(entry, Exchange) else 0
