"""Plans the steps that make sites match a topology file, in an order that loses no message. Pure.

A plan depends only on the file and the current state of the sites, and its steps are idempotent. So after a crash, a
new plan continues where the last plan stopped. New entries are created first, from peers to routes. Old entries are
removed when all routes of the file forward messages. The exchanges and the peer of an old route are removed when the
route's queue is empty.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec.structs import replace

from sluice.errors import BadBinding, BadRoute, Malformed
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link, check_bridge, check_link, find_key_problem
from sluice.federation.links.peers import Peer, check_peer, describe_unknown_peer
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
    describe_changes,
    describe_entry,
    differ,
    get_entry_key,
    index_by_key,
    make_add_operation,
    make_delete_operation,
)
from sluice.federation.topology.states import SiteState, list_closing_entries
from sluice.operations import Operation

CREATION_ORDER = (PEER, EXCHANGE, BINDING, LINK, ROUTE)  # an entry needs only entries before it
REMOVAL_ORDER = (ROUTE, LINK, BINDING, EXCHANGE, PEER)
STANDARD_ENTRIES = index_by_key(STANDARD_EXCHANGES)


class Act(StrEnum):
    """The action of a step on an entry."""

    ADD = "add"
    CHANGE = "change"
    REMAKE = "remake"  # a later step creates the removed entry again
    REMOVE = "remove"


class Stage(IntEnum):
    """The stages of a plan, in order. Each step belongs to one stage."""

    CREATE = 0
    CLEAR = 1  # Removes the entries that are created again.
    RECREATE = 2  # When nothing is closing, creates entries that need the name or path of a removed entry.
    CLOSE = 3  # Closes old routes and links, once the file's own routes forward messages.
    REMOVE = 4  # When nothing is closing, removes the other old entries and revokes permissions.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One operation at a site.

    `message_effect` describes what happens to messages during the step, unless messages are forwarded as usual.
    """

    site: str
    act: Act
    kind: str
    name: str
    change: str = ""
    message_effect: str = ""
    operation: Operation[Any]

    @property
    def entry(self) -> tuple[str, str, str]:
        """The site, the kind and the name of the entry."""
        return self.site, self.kind, self.name

    @property
    def is_destructive(self) -> bool:
        """Whether the step removes an entry, for good or to create it again."""
        return self.act in {Act.REMOVE, Act.REMAKE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """The steps of one stage, in order. They start when the stage's condition is met."""

    stage: Stage
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """An entry that stays at a site although the file lacks it, with the reason."""

    site: str
    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A part of the file that can't be applied. If there is any conflict, nothing is changed."""

    place: str
    cause: str

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPlan:
    """All steps, leftovers and conflicts of a plan. `routes` has the names of the file's routes, by site."""

    stages: tuple[PlannedStage, ...]
    leftovers: tuple[Leftover, ...]
    conflicts: tuple[Conflict, ...]
    routes: Mapping[str, tuple[str, ...]]

    @property
    def steps(self) -> list[PlannedStep]:
        """All steps, in the order in which they are applied."""
        return [step for stage in self.stages for step in stage.steps]

    @property
    def is_destructive(self) -> bool:
        """Whether any step removes an entry, for good or to create it again."""
        return any(step.is_destructive for step in self.steps)


def plan_topology(desired: DesiredTopology, states: Mapping[str, SiteState], *, prune: bool) -> TopologyPlan:
    """Plan the steps from the current state of the sites in `states`, by the file's tags, to the state in the file.

    Entries that the file lacks are removed with `prune`, unless the deployment declares them; others are left over.
    """
    sites = {tag: _SiteComparison(tag, states[tag], prune=prune) for tag in sorted(desired.sites)}
    for tag, site in sites.items():
        site.read_desired(desired.sites[tag], states)
    for site in sites.values():
        site.check_entries(sites)
    turns = sorted((turn for site in sites.values() for turn in site.schedule_steps()), key=lambda turn: turn[:2])
    stages = [PlannedStage(stage=stage, steps=tuple(step for at, _, step in turns if at is stage)) for stage in Stage]
    return TopologyPlan(
        stages=tuple(stage for stage in stages if stage.steps),
        leftovers=tuple(leftover for site in sites.values() for leftover in site.leftovers()),
        conflicts=tuple(conflict for site in sites.values() for conflict in site.conflicts),
        routes={
            tag: tuple(name for kind, name in sorted(site.desired) if kind == ROUTE) for tag, site in sites.items()
        },
    )


# the stage of a step, its order within the stage, and the step
ScheduledStep = tuple[Stage, tuple[int, int, str, str], PlannedStep]


class _SiteComparison:
    """Compares the desired entries of one site with the site's actual entries."""

    def __init__(self, tag: str, state: SiteState, *, prune: bool) -> None:
        self.tag, self.state, self.prune = tag, state, prune
        self.actual: Entries = state.entries
        self.desired: dict[Key, Entry] = {}
        self.places: dict[Key, str] = {}
        self.conflicts: list[Conflict] = []

    @contextmanager
    def record_conflicts(self, place: str) -> Iterator[None]:
        """Record errors as conflicts at this place of the file."""
        try:
            yield
        except (BadBinding, BadRoute, Malformed) as error:
            self.conflicts.append(Conflict(place=f"sites.{self.tag}.{place}", cause=str(error)))

    def read_desired(self, site: DesiredSite, states: Mapping[str, SiteState]) -> None:
        """Read the desired entries of the site, and complete them with the addresses of the file's other sites."""
        here, addresses = self.state.view.address, {tag: state.view.address for tag, state in states.items()}
        if here.tag != self.tag:
            cause = f"the site at {site.at} has the tag {here.tag}"
            self.conflicts.append(Conflict(place=f"sites.{self.tag}.at", cause=cause))
            return
        entries: dict[str, Callable[[Any], Entry]] = {
            "peers": lambda peer: peer.peer(addresses.get(peer.tag)),
            "exchanges": lambda exchange: exchange,
            "bindings": lambda binding: replace(binding, queue=self.state.display_name(binding.queue)),
            "links": lambda link: link.link(here=here, peer=addresses.get(link.peer)),
            "routes": lambda route: route,
        }
        for name, entry_of in entries.items():
            for number, item in enumerate(getattr(site, name)):
                with self.record_conflicts(place := f"{name}[{number}]"):
                    self.add_desired(entry_of(item), place)

    def add_desired(self, entry: Entry, place: str) -> None:
        """Add a desired entry, except a standard exchange. Raises `BadBinding`, or `Malformed` for a duplicate."""
        key = get_entry_key(entry)
        if STANDARD_ENTRIES.get(key, entry) != entry:
            raise BadBinding(f"{key[1]}: every site has this exchange, and none changes it")
        if key in STANDARD_ENTRIES:
            return
        if key in self.desired:
            raise Malformed(f"the same {key[0]} as {self.places[key]}: {key[1]}")
        self.desired[key], self.places[key] = entry, place

    @cached_property
    def resulting_entries(self) -> Entries:
        """The entries that the site has after the plan is applied."""
        stays = {key: entry for key, entry in self.actual.items() if key in self.state.declared or not self.prune}
        return {**STANDARD_ENTRIES, **stays, **self.desired}

    def check_entries(self, sites: Mapping[str, "_SiteComparison"]) -> None:
        """Record conflicts for entries that the site would refuse, or that would have another effect than wanted."""
        with self.record_conflicts("exchanges"):
            self.sort_exchanges()
        checked: list[Entry] = []
        for key, entry in self.desired.items():
            with self.record_conflicts(self.places[key]):
                was = self.actual.get(key)
                if was is not None and differ(was, entry) and key in self.state.declared:
                    raise BadRoute(
                        f"{key[1]}: the deployment declares it otherwise, in cdk.json: {describe_changes(was, entry)}"
                    )
                match entry:
                    case Peer():
                        others = [peer for peer in checked if isinstance(peer, Peer)]
                        check_peer(entry, here=self.tag, accounts=self.state.view.peer_accounts, existing=others)
                    case Exchange():
                        self.check_exchange(entry, was)
                    case BindingDeclaration():
                        self.check_binding(entry)
                    case Link():
                        check_link(entry, here=self.tag, existing=[link for link in checked if isinstance(link, Link)])
                        self.check_link(entry, was)
                    case Bridge():
                        self.check_route(entry, sites, others=[route for route in checked if isinstance(route, Bridge)])
            checked.append(entry)

    def sort_exchanges(self) -> list[str]:
        """Return the names of all exchanges, each after its alternate exchange. Raises `BadBinding`."""
        exchanges = [
            exchange for exchange in {**self.actual, **self.desired}.values() if isinstance(exchange, Exchange)
        ]
        alternates = {exchange.name: {exchange.alternate or exchange.name} - {exchange.name} for exchange in exchanges}
        try:
            return list(TopologicalSorter(alternates).static_order())
        except CycleError as error:
            raise BadBinding(f"each is the other's alternate: {', '.join(error.args[1])}") from None

    def require_exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raises `BadBinding` if the site won't have it after the plan."""
        exchange = self.resulting_entries.get((EXCHANGE, name))
        if not isinstance(exchange, Exchange):
            raise BadBinding(f"no such exchange at {self.tag}: {name}")
        return exchange

    def check_exchange(self, exchange: Exchange, existing: Entry | None) -> None:
        """Check that the exchange is new or unchanged, and that its alternate exchange exists. Raises `BadBinding`."""
        if existing is not None and existing != exchange:
            raise BadBinding(
                f"{exchange.name}: {describe_changes(existing, exchange)}: an exchange isn't changed, as what is"
                " published meanwhile would be lost: give the new one another name"
            )
        if exchange.alternate is not None:
            self.require_exchange(exchange.alternate)

    def check_binding(self, binding: BindingDeclaration) -> None:
        """Check that the site would accept the binding. Raises `BadBinding`."""
        binding.binding().check(self.require_exchange(binding.exchange).type)
        queues = self.state.queues
        if queues.find_queue(binding.queue) is None and (problem := queues.find_name_problem(binding.queue)):
            raise BadBinding(problem)

    def check_link(self, link: Link, existing: Entry | None) -> None:
        """Check that the peer exists, and that a new link closes no routes that the file lacks. Raises `BadRoute`."""
        if (PEER, link.peer) not in self.resulting_entries:
            raise BadRoute(f"{link.name}: {link.peer} is no peer of {self.tag}: it goes into sites.{self.tag}.peers")
        used = {route.link for route in self.resulting_entries.values() if isinstance(route, Bridge)}
        if not link.durable and link.name not in used:
            raise BadRoute(f"{link.name}: it isn't durable, and goes with its last route: there is none")
        if existing is None or not differ(existing, link) or self.prune:
            return
        routes = [entry for key, entry in self.actual.items() if key not in self.desired and isinstance(entry, Bridge)]
        others = [route.name for route in routes if route.link == link.name]
        if others:
            raise BadRoute(
                f"{link.name}: {describe_changes(existing, link)}: with the old link routes would go that "
                f"the file hasn't: {', '.join(others)}"
            )

    def check_route(self, route: Bridge, sites: Mapping[str, "_SiteComparison"], *, others: list[Bridge]) -> None:
        """Check that the route's ends exist, and that the peer permits the route. Raises `BadRoute` or `BadBinding`."""
        links = [entry for entry in self.resulting_entries.values() if isinstance(entry, Link)]
        check_bridge(route, links=links, existing=others)
        stays = [entry for key, entry in self.resulting_entries.items() if key not in self.desired]
        for other in stays:
            if isinstance(other, Bridge) and other.identity == route.identity:
                raise BadRoute(f"{route.name}: it goes the way of {other.name}, which the file hasn't")
        [peer] = [link.peer for link in links if link.name == route.link]
        peer_site = sites.get(peer)
        source, dest = (self, peer_site) if route.src_is_local else (peer_site, self)
        exchanges = [] if dest is None else [dest.require_exchange(route.dest)]
        if source is not None and not route.src_is_queue:
            source_exchange = source.require_exchange(route.src)
            exchanges.append(source_exchange)
            problem = find_key_problem(route, source_exchange.type)
            if problem is not None:
                raise BadRoute(f"{route.name}: {problem}")
        if route.dynamic and len({exchange.type for exchange in exchanges}) > 1:
            types = " and ".join(sorted(exchange.type.value for exchange in exchanges))
            raise BadRoute(f"{route.name}: {route.src} is {types} at its two ends: a dynamic route needs one type")
        if peer_site is not None:
            self._check_permissions(route, peer_site)

    def _check_permissions(self, route: Bridge, peer_site: "_SiteComparison") -> None:
        """Check that the site at each end of the route permits the route. Raises `BadRoute`."""
        peer = peer_site.tag
        rules = peer_site.resulting_entries.get((PEER, self.tag))
        if not isinstance(rules, Peer):
            raise BadRoute(f"{route.name}: at {peer}, {describe_unknown_peer(self.tag)}")
        if route.src_is_local:
            refusals = {peer: rules.find_push_refusal(route.dest)}
        else:
            follows_keys = not route.src_is_queue and peer_site.require_exchange(route.src).type.follows_keys
            sender = self.resulting_entries.get((PEER, peer))
            refusals = {
                peer: rules.find_pull_refusal(route, follows_keys=follows_keys),
                self.tag: sender.find_push_refusal(route.dest) if isinstance(sender, Peer) else None,
            }
        for site, refusal in refusals.items():
            if refusal is not None:
                raise BadRoute(f"{route.name}: at {site}, {refusal}")

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the entries that stay although the file lacks them, each with the reason."""
        for key in sorted(self.state.persistent_entries.keys() - self.desired.keys()):
            is_declared = key in self.state.declared
            if is_declared or not self.prune:
                reason = "the deployment declares it" if is_declared else "--prune takes it away"
                yield Leftover(site=self.tag, kind=key[0], name=key[1], reason=reason)

    def schedule_steps(self) -> Iterator[ScheduledStep]:
        """Yield the steps at this site, each with its stage and its order."""
        if self.conflicts:
            return
        closing = set(list_closing_entries(self.state.view))
        late_links = {
            entry.name
            for key, entry in self.desired.items()
            if isinstance(entry, Link) and (key in closing or differ(self.actual.get(key, entry), entry))
        }
        removed = [entry for key, entry in self.state.persistent_entries.items() if key not in self.resulting_entries]
        desired_identities = {entry.identity for entry in self.desired.values() if isinstance(entry, Bridge)}
        for entry in removed:
            is_replaced = isinstance(entry, Bridge) and entry.identity in desired_identities
            if is_replaced or (isinstance(entry, Bridge) and entry.link in late_links):
                yield self.schedule_removal(entry, Stage.CLEAR, Act.REMAKE if is_replaced else Act.REMOVE)
            else:
                stage = Stage.CLOSE if isinstance(entry, Link | Bridge) else Stage.REMOVE
                yield self.schedule_removal(entry, stage, Act.REMOVE)
        closing_identities = {route.identity for route in self.state.view.bridges if route.state == LinkState.CLOSING}
        taken = closing_identities | {entry.identity for entry in removed if isinstance(entry, Bridge)}
        for key, entry in self.desired.items():
            waits = key in closing or (
                isinstance(entry, Bridge) and (entry.identity in taken or entry.link in late_links)
            )
            yield from self.schedule_entry_steps(entry, must_wait=waits, late_links=late_links)

    def schedule_entry_steps(self, entry: Entry, *, must_wait: bool, late_links: set[str]) -> Iterator[ScheduledStep]:
        """Yield the steps for a desired entry. A new entry `must_wait` if other entries have to be removed first."""
        was = self.actual.get(get_entry_key(entry))
        if was is None:
            yield self.schedule_creation(entry, Stage.RECREATE if must_wait else Stage.CREATE)
        elif isinstance(entry, Bridge) and isinstance(was, Bridge) and entry.link in late_links:
            if was.link not in late_links:  # a route of a removed link closes with the link
                yield self.schedule_removal(was, Stage.CLEAR, Act.REMAKE)
            yield self.schedule_creation(entry, Stage.RECREATE)
        elif isinstance(entry, Bridge) and isinstance(was, Bridge) and differ(was, entry) and was.can_become(entry):
            yield self.schedule_creation(entry, Stage.CREATE, existing=was)
        elif isinstance(was, Link | Bridge) and differ(was, entry):
            yield self.schedule_removal(was, Stage.CLEAR, Act.REMAKE)
            yield self.schedule_creation(entry, Stage.RECREATE)
        elif isinstance(entry, Peer) and isinstance(was, Peer):
            # Permissions are revoked last, because this closes the peer's routes and refuses its messages at once.
            both = entry.merge_rules(was)
            if differ(was, both):
                yield self.schedule_creation(both, Stage.CREATE, existing=was)
            if differ(both, entry):
                yield self.schedule_creation(entry, Stage.REMOVE, existing=both)
        elif differ(was, entry):
            yield self.schedule_creation(entry, Stage.CREATE, existing=was)

    def schedule_creation(self, entry: Entry, stage: Stage, *, existing: Entry | None = None) -> ScheduledStep:
        """Schedule the creation of an entry, or its change from `existing`."""
        act, change = (
            (Act.ADD, describe_entry(entry)) if existing is None else (Act.CHANGE, describe_changes(existing, entry))
        )
        kind, name = get_entry_key(entry)
        step = PlannedStep(
            site=self.tag, act=act, kind=kind, name=name, change=change, operation=make_add_operation(entry, existing)
        )
        rank = (REMOVAL_ORDER if stage is Stage.REMOVE else CREATION_ORDER).index(kind)
        return stage, (rank, self.get_exchange_rank(entry), self.tag, name), step

    def schedule_removal(self, entry: Entry, stage: Stage, act: Act) -> ScheduledStep:
        """Schedule the removal of an entry."""
        desired, (kind, name) = self.desired.get(get_entry_key(entry)), get_entry_key(entry)
        message_effect = ""
        if act is Act.REMAKE:
            waits = isinstance(entry, Bridge) and entry.src_is_queue
            message_effect = (
                "what comes meanwhile waits in its queue" if waits else "what is published meanwhile isn't sent"
            )
        step = PlannedStep(
            site=self.tag,
            act=act,
            kind=kind,
            name=name,
            change=describe_entry(entry) if desired is None else describe_changes(entry, desired),
            message_effect=message_effect,
            operation=make_delete_operation(entry),
        )
        return stage, (REMOVAL_ORDER.index(kind), -self.get_exchange_rank(entry), self.tag, name), step

    def get_exchange_rank(self, entry: Entry) -> int:
        """Return an exchange's position in the order of alternate exchanges. Other kinds of entries have no order."""
        return self.sort_exchanges().index(entry.name) if isinstance(entry, Exchange) else 0
