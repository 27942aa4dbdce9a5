"""Applies what operators, ticks, the bridge function and deployments ask of a site.

The command line is one asker; a request from anywhere else is checked as strictly. What a deployment declares is made
by each sweep where it is missing, and taken away where it is declared no longer; what was never declared stays.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from sluice.errors import BadBinding, BadConfiguration, BadRoute
from sluice.federation.declared import DECLARED, BindingDeclaration, Declared
from sluice.federation.exchange_store import with_binding, with_exchange, without_binding, without_exchange
from sluice.federation.links.links import Bridge, Link, check_link
from sluice.federation.links.peers import Peer, check_peer, no_peer
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, fed_queues
from sluice.federation.links.states import AccessRefused, Command, LinkEvent, Unreachable
from sluice.federation.links.transitions import (
    add_bridge,
    add_link,
    change_bridge,
    close_bridge,
    tell_bridge,
    tell_link,
)
from sluice.federation.matching.bindings import Destination
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.operations import (
    AddBridge,
    AddExchange,
    AddLink,
    AddPeer,
    BindQueue,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    DeleteExchange,
    DeletePeer,
    FederationOperation,
    ListBindings,
    ListExchanges,
    ListQueues,
    ListWays,
    LookAgain,
    Redrive,
    Redriven,
    ReportGone,
    ReportOutage,
    ShowSite,
    SweepSite,
    TellBridge,
    TellLink,
    UnbindQueue,
)
from sluice.federation.registrar import LinkService
from sluice.federation.settings import SiteNames
from sluice.federation.site_views import SiteViews
from sluice.federation.upkeep import DriftRepair

if TYPE_CHECKING:  # at run time the shell is given its adapters, and imports none
    from sluice.aws.documents import DynamoDocument


class NoSuch(BadConfiguration):
    """There is no link or route of this name."""


class OperationHandler(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. `peers` and `declared` are the deployment's, `applied` is where the last declaration stands."""

    registrar: LinkService
    views: SiteViews
    upkeep: DriftRepair
    names: SiteNames
    hear_peers: Callable[[], None]  # let what peers send be read: where there are none, it isn't
    peers: tuple[Peer, ...]
    declared: Declared
    applied: "DynamoDocument"

    def perform(self, operation: FederationOperation) -> object:  # noqa: C901, PLR0911, PLR0912 - one case an operation
        """Do what is asked; the operation's result.

        Raises a `BadConfiguration` for what the asker did wrong, `QueueGone` for a queue that isn't there: nothing was
        changed then. Raises what the registrar raises.
        """
        registrar = self.registrar
        match operation:
            case ShowSite():
                return self.views.site()
            case ListExchanges():
                return self.views.exchanges()
            case ListQueues():
                return self.views.queues()
            case ListBindings(exchange=name):
                return self.views.bindings(name)
            case ListWays():
                return self.views.ways()
            case Redrive(name=name):
                return self.redrive(name)
            case AddExchange(name=name, type=type_, alternate=alternate):
                exchange = Exchange(name=name, type=type_, alternate=alternate)
                registrar.exchanges.change(with_exchange(exchange))
                return exchange
            case DeleteExchange(name=name):
                registrar.exchanges.change(without_exchange(name))
            case BindQueue():
                declaration = operation.declaration()
                queue = self.names.physical(declaration.queue)
                registrar.works.queues.count(queue)  # it has to be there
                self.bind(declaration, replaces=operation.replaces)
                return BindingDeclaration.of(declaration.binding(queue=queue))
            case UnbindQueue(exchange=name, queue=queue, key=key):
                registrar.exchanges.change(without_binding((name, self.names.physical(queue), key)))
            case AddPeer(peer=peer):
                self.add_peer(peer)
                return peer
            case DeletePeer(name=name):
                self.remove_peer(name)
            case AddLink(link=link):
                self.add_link(link)
                return link
            case CloseLink(name=name):
                self.tell_link(name, LinkEvent.CLOSE)
            case TellLink(name=name, what=command):
                self.tell_link(name, command)
            case AddBridge(bridge=bridge):
                self.add_bridge(bridge)
                return bridge
            case ChangeBridge(bridge=bridge):
                self.change_bridge(bridge)
                return bridge
            case CloseBridge():
                self.close_bridge(operation)
            case TellBridge():
                self.tell_bridge(operation)
            case ReportOutage(link=name, error=error, refused=refused, at_ms=at_ms):
                news = AccessRefused(error, at_ms) if refused else Unreachable(error, at_ms)
                registrar.advance([tell_link(name, news)], ticks=False)
            case ReportGone(copies=copies):
                self.upkeep.report(copies)
            case LookAgain():
                registrar.advance()  # first: looks may take all the time there is
                self.upkeep.look_again()
                registrar.advance(ticks=False)
            case SweepSite():
                self.sweep()
        return None

    def redrive(self, name: str) -> Redriven:
        """Put a route's dead letters back. Raises `NoSuch`, or `BadRoute` for one that begins elsewhere."""
        queue = self.record(name).queue
        if queue is None:
            raise BadRoute(f"{name}: its dead letters are at its source: redrive it there")
        return Redriven(redriven=self.upkeep.redrive(queue))

    # Bindings, peers, links, routes

    def bind(self, declaration: BindingDeclaration, *, replaces: bool = False) -> None:
        """Bind a queue, also in place of a binding with other arguments where it `replaces`. Raises `BadBinding`."""
        queue = self.names.physical(declaration.queue)
        feeds_route = queue in fed_queues(self.registrar.registry())
        destination = Destination(queue=queue, url=self.registrar.works.queues.url(queue), feeds_route=feeds_route)
        binding = declaration.binding(queue=queue)
        self.registrar.exchanges.change(with_binding(binding, destination, replaces=replaces))

    def add_peer(self, peer: Peer) -> None:
        """Declare a peer, or what it may from now on. Raises `BadRoute` for one that can't be."""
        here, accounts, stages = self.registrar.here.tag, self.registrar.peer_accounts, self.registrar.peer_stages

        def added(known: dict[str, Peer]) -> dict[str, Peer]:
            check_peer(peer, here=here, accounts=accounts, stages=stages, existing=known.values())
            tags = known[peer.tag].tags if peer.tag in known else ()
            return {**known, peer.tag: replace(peer, tags=tuple(sorted({*tags, *peer.tags})))}

        self.registrar.known.change(added)
        self.hear_peers()
        # What the peer may have no longer goes at once, and not with its next hello.
        registry = self.registrar.registry()
        served = [each.bridge for each in registry.bridges.values() if each.served and not each.closing]
        of_peer = [bridge for bridge in served if registry.links[bridge.link].link.peer == peer.tag]
        gone = [close_bridge(bridge.name) for bridge in of_peer if peer.refusal_of(bridge) is not None]
        self.registrar.advance(gone, ticks=False)

    def note_tag(self, bridge: Bridge) -> None:
        """Know a route's own tag for its peer's, where messages come here over it."""
        record = self.registrar.registry().links.get(bridge.link)
        tag = bridge.tag
        if bridge.src_is_local or tag is None or record is None:
            return

        def noted(known: dict[str, Peer]) -> dict[str, Peer]:
            peer = known.get(record.link.peer)
            if peer is None or tag in {peer.tag, *peer.tags}:
                return known
            return {**known, peer.tag: replace(peer, tags=(*peer.tags, tag))}

        self.registrar.known.change(noted)

    def remove_peer(self, tag: str) -> None:
        """Let a site be no peer any more. Raises `NoSuch`, or `BadRoute` for one that links of this site go to."""
        links = self.registrar.registry().links
        if tag not in self.registrar.known.value():
            raise NoSuch(f"no such peer: {tag}")
        to_peer = [name for name, each in sorted(links.items()) if each.link.peer == tag]
        ours = [name for name in to_peer if not links[name].served]
        if ours:
            raise BadRoute(f"{tag}: links of this site go there: {', '.join(ours)}")
        self.registrar.known.change(lambda known: {each: peer for each, peer in known.items() if each != tag})
        self.registrar.advance([tell_link(name, LinkEvent.CLOSE) for name in to_peer])

    def add_link(self, link: Link, *, declared: bool = False) -> None:
        """Declare a link. Raises `BadRoute` for one that can't be."""
        links = self.registrar.registry().links.values()
        others = [record.link for record in links if record.link.name != link.name]
        check_link(link, here=self.registrar.here.tag, existing=others)
        if SERVED_MARK not in link.name and link.peer not in self.registrar.known.value():
            raise BadRoute(f"{link.name}: {no_peer(link.peer)}")
        take_in = self.registrar.take_in if declared else self.registrar.advance
        take_in([add_link(link, declared=declared)])

    def tell_link(self, name: str, news: Command | LinkEvent) -> None:
        """Tell a link what to do. Raises `NoSuch`."""
        if name not in self.registrar.registry().links:
            raise NoSuch(f"no such link: {name}")
        self.registrar.advance([tell_link(name, news)])

    def add_bridge(self, bridge: Bridge) -> None:
        """Declare a route. Raises `BadRoute` or `BadBinding` for one that can't be."""
        self.check_filter(bridge)
        if bridge.src_is_local and bridge.src_is_queue:
            self.names.readable(bridge.src)  # said at once; of one that is pulled the source says it
        self.registrar.advance([add_bridge(bridge)])
        self.note_tag(bridge)

    def change_bridge(self, bridge: Bridge) -> None:
        """Give a route other options where it stands. Raises `NoSuch`, or `BadRoute` for one that can't be so."""
        if self.record(bridge.name).declared:
            raise BadRoute(f"{bridge.name}: it is declared in cdk.json: change it there, and deploy")
        self.check_filter(bridge)
        self.registrar.advance([change_bridge(bridge)])
        self.note_tag(bridge)

    def check_filter(self, bridge: Bridge) -> None:
        """Check that a route's filter can be used. Raises `BadRoute`."""
        reason = self.registrar.filter_refusal(bridge)
        if reason is not None:
            raise BadRoute(f"{bridge.name}: {reason}")

    def close_bridge(self, asked: CloseBridge) -> None:
        """Take a route away. Raises `NoSuch`."""
        link = self.record(asked.name).bridge.link
        registry = self.registrar.advance([close_bridge(asked.name)])
        if asked.del_empty_link and all(each.closing for each in registry.bridges_of(link)):
            self.registrar.advance([tell_link(link, LinkEvent.CLOSE)])

    def tell_bridge(self, asked: TellBridge) -> None:
        """Tells a route what to do. Raises `NoSuch`, or `BadRoute` for one that is its peer's to tell."""
        record = self.record(asked.name)
        if record.served:
            raise BadRoute(f"{asked.name}: the site that it goes to asked for it: {asked.what} it there")
        if asked.what is Command.DRAIN and not record.bridge.src_is_local:
            raise BadRoute(f"{asked.name}: it is pulled: drain its link, or the route at its source")
        is_links = asked.what is Command.RETRY
        link = tell_link(record.bridge.link, asked.what)
        self.registrar.advance([link if is_links else tell_bridge(asked.name, asked.what)])

    def record(self, name: str) -> BridgeRecord:
        """Return what is known of a route. Raises `NoSuch`."""
        record = self.registrar.registry().bridges.get(name)
        if record is None:
            raise NoSuch(f"no such route: {name}")
        return record

    # What is declared

    def sweep(self) -> None:
        """Make what is declared, and do what is due. Raises a `BadConfiguration` for all that can't be as declared."""
        faults: list[BadConfiguration] = []
        try:
            faults += self.declare_peers()
            faults += self.declare()
        finally:  # what can't be as it is declared holds up nothing else
            try:
                self.upkeep.sweep()
            finally:
                self.registrar.advance()
                self.registrar.exchanges.fold()
        if faults:
            raise BadConfiguration("; ".join(map(str, faults)))

    def declare(self) -> Sequence[BadConfiguration]:
        """Make what is declared, and take away what was and is no longer; what can't be, the rest being there."""
        content, version = self.applied.load()
        before, declared, change = Declared(), self.declared, self.registrar.exchanges.change
        if content is not None:
            before = DECLARED.of_text(content)
        kept = {route.name: route for route in declared.routes}
        gone = [
            close_bridge(route.name)
            for route in before.routes
            if route.name not in kept or not route.can_become(kept[route.name])
        ]
        closed_links = [tell_link(link.name, LinkEvent.CLOSE) for link in before.links if link not in declared.links]
        self.registrar.advance([*gone, *closed_links], ticks=False)
        ids = {each.binding().id for each in declared.bindings}
        names = {each.name for each in declared.exchanges}
        unbound = [each for each in before.bindings if each.binding().id not in ids]
        withdrawn = [
            *(without_binding((each.exchange, self.names.physical(each.queue), each.key)) for each in unbound),
            *(without_exchange(each.name) for each in before.exchanges if each.name not in names),
        ]
        for each in withdrawn:
            with suppress(BadBinding):  # taken away at run time, or something was bound to it: then that stays
                change(each)
        watch = self.upkeep.watch()
        # One whose queue is gone comes back with that.
        there = [each for each in declared.bindings if not watch.of(self.names.physical(each.queue)).unbound]

        faults = _faults(
            [
                *(partial(change, with_exchange(exchange)) for exchange in declared.exchanges),
                *(partial(self.bind, binding) for binding in there),
                *(partial(self.add_link, link, declared=True) for link in declared.links),
                *(partial(self.declare_route, route) for route in declared.routes),
            ]
        )
        if before != declared:
            self.applied.save(DECLARED.text(declared).encode(), after=version)
        return faults

    def declare_route(self, route: Bridge) -> None:
        """Make a route that is declared, or change it where it stands. Raises `BadRoute` for one that can't be."""
        there = self.registrar.registry().bridges.get(route.name)
        if there is not None and there.closing:
            return  # another of its name is about to go: this one is made with the next sweep after that
        if there is None or there.bridge.filter != route.filter:
            self.check_filter(route)
        changes = there is not None and there.bridge.can_become(route)
        self.registrar.take_in([change_bridge(route) if changes else add_bridge(route, declared=True)])
        self.note_tag(route)

    def declare_peers(self) -> Sequence[BadConfiguration]:
        """Let those be peers that are declared, and those no longer that were; what can't be, the rest being there."""
        known, declared = self.registrar.known.value(), {peer.tag: peer for peer in self.peers}
        if known:  # a deployment may have switched it off again
            self.hear_peers()
        faults = _faults(partial(self.add_peer, peer) for tag, peer in declared.items() if peer != known.get(tag))
        for tag in [tag for tag, peer in known.items() if peer.declared and tag not in declared]:
            with suppress(BadRoute):  # one that links of this site go to stays
                self.remove_peer(tag)
        return faults


def _faults(makes: Iterable[Callable[[], object]]) -> Sequence[BadConfiguration]:
    """Make each, and return what can't be made: it holds up none of the others."""
    faults: list[BadConfiguration] = []
    for make in makes:
        try:
            make()
        except BadConfiguration as fault:
            faults.append(fault)
    return faults
