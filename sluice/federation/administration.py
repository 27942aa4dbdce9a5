"""Performs what operators, ticks and the bridge function ask of a site's exchanges, bindings, links and routes.

The command line is one asker; a request from anywhere else is checked as strictly.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import asdict, replace

from sluice.errors import BadBinding, BadConfiguration, BadRoute
from sluice.federation.bridge_works import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import DECLARED, BindingDeclaration, Declared
from sluice.federation.dynamic.paths import Way
from sluice.federation.exchange_store import with_binding, with_exchange, without_binding, without_exchange
from sluice.federation.links.links import Bridge, Introduction, Link, check_link
from sluice.federation.links.peers import Peer, check_peer, no_peer
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, LinkRecord, fed_queues, state_of
from sluice.federation.links.states import AccessRefused, Command, LinkEvent, LinkState, Unreachable
from sluice.federation.links.transitions import (
    BridgeAdded,
    BridgeChanged,
    BridgeClosed,
    BridgeTold,
    LinkAdded,
    LinkTold,
)
from sluice.federation.links.watch import Mends
from sluice.federation.matching.bindings import Binding, Destination
from sluice.federation.matching.exchanges import Exchange
from sluice.federation.operations import (
    AddBridge,
    AddExchange,
    AddLink,
    AddPeer,
    BindingsView,
    BindQueue,
    BridgeView,
    ChangeBridge,
    CloseBridge,
    CloseLink,
    DeleteExchange,
    DeletePeer,
    ExchangesView,
    FederationOperation,
    LinkView,
    ListBindings,
    ListExchanges,
    ListQueues,
    ListWays,
    LookAgain,
    QueuesView,
    QueueView,
    Redrive,
    Redriven,
    ReportGone,
    ReportOutage,
    ShowSite,
    SiteView,
    SweepSite,
    TellBridge,
    TellLink,
    UnbindQueue,
    WaysView,
    WayView,
)
from sluice.federation.ports import Document
from sluice.federation.registrar import Registrar
from sluice.federation.settings import SiteNames
from sluice.federation.upkeep import Upkeep

MAX_KEYS = 100  # shown of a way; all are counted


class NoSuch(BadConfiguration):
    """There is no link or route of this name."""


class Administration(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's. `applied` is where the last declaration stands that was applied.

    `senders` are ids of the roles of this site's functions that peers hear from; `peers` are those that are declared.
    """

    registrar: Registrar
    senders: tuple[str, ...]
    peers: tuple[Peer, ...]
    names: SiteNames
    declared: Declared
    applied: Document
    ways: Callable[[], Mapping[str, list[Way]]]  # of dynamic routes, by exchange
    hear_peers: Callable[[], None]  # let what peers send be read: where there are none, it isn't
    upkeep: Upkeep
    kms_key_arn: str | None = None  # of the key for queues made at run time

    def perform(self, operation: FederationOperation) -> object:  # noqa: C901, PLR0911, PLR0912 - one case an operation
        """Do what is asked; the operation's result.

        Raises a `BadConfiguration` for what the asker did wrong, `QueueGone` for a queue that isn't there: nothing was
        changed then. Raises what the registrar raises.
        """
        match operation:
            case ShowSite():
                return self.site()
            case ListExchanges():
                return ExchangesView(exchanges=self.registrar.exchanges.bindings().exchanges)
            case ListQueues():
                return self.queues()
            case ListBindings(exchange=name):
                return self.bindings(name)
            case ListWays():
                shown = [_shown_way(exchange, way) for exchange, ways in self.ways().items() for way in ways]
                return WaysView(ways=tuple(shown))
            case Redrive(name=name):
                return self.redrive(name)
            case AddExchange(name=name, type=type_, alternate=alternate):
                exchange = Exchange(name=name, type=type_, alternate=alternate)
                self.registrar.exchanges.change(with_exchange(exchange))
                return exchange
            case DeleteExchange(name=name):
                self.registrar.exchanges.change(without_exchange(name))
            case BindQueue():
                declaration = operation.declaration()
                queue = self.names.physical(declaration.queue)
                self.registrar.works.queues.count(queue)  # it has to be there
                self.bind(declaration, replaces=operation.replaces)
                return BindingDeclaration.of(declaration.binding(queue=queue))
            case UnbindQueue(exchange=name, queue=queue, key=key):
                self.registrar.exchanges.change(without_binding((name, self.names.physical(queue), key)))
            case AddPeer(peer=peer):
                self.add_peer(peer)
                return peer
            case DeletePeer(name=name):
                self.remove_peer(name)
            case AddLink(link=link):
                self.add_link(link, declared=False)
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
                self.registrar.advance([LinkTold(name, news)], ticks=False)
            case ReportGone(copies=copies):
                self.upkeep.report(copies)
            case LookAgain():
                self.registrar.advance()  # first: looks may take all the time there is
                self.upkeep.look_again()
                self.registrar.advance(ticks=False)
            case SweepSite():
                self.sweep()
        return None

    # What there is

    def site(self) -> SiteView:
        """All that the site says of itself."""
        registry, bindings = self.registrar.registry(), self.registrar.exchanges.bindings()
        forwards, fed, mends = self.registrar.last_forwards(), fed_queues(registry), self.upkeep.watch().mends
        return SiteView(
            address=Introduction(**asdict(self.registrar.here), senders=self.senders),
            peer_accounts=self.registrar.peer_accounts,
            peers=tuple(peer for _, peer in sorted(self.registrar.known.value().items())),
            exchanges=bindings.exchanges,
            bindings=bindings.count,
            feeds=tuple(self.shown(each) for each in bindings if each.queue in fed),
            links=tuple(_shown_link(record) for _, record in sorted(registry.links.items())),
            bridges=tuple(
                BridgeView(
                    **asdict(record.bridge),
                    served=record.served,
                    declared=record.declared,
                    state=LinkState.CLOSING if link is None else state_of(record, link),
                    error=record.error,
                    reads=None if record.queue is None else self.names.shown(record.queue),
                    last_forward_ms=forwards.get(name),
                    mends=mends.get(name, Mends()),
                )
                for name, record in sorted(registry.bridges.items())
                for link in [registry.links.get(record.bridge.link)]
            ),
            declared=self.declared,
        )

    def queues(self) -> QueuesView:
        """Return the queues that are deployed, bound, or read by routes: not those that routes have of their own."""
        records = sorted(self.registrar.registry().bridges.items())
        made = {record.queue for _, record in records if record.makes_queue}
        # A queue that is being made anew is known by its name alone.
        users = (each.queue for each in self.registrar.exchanges.bindings() if each.queue not in made)
        bound = Counter(queue for queue in users if not queue.startswith(BRIDGE_QUEUE_PREFIX))
        read = [(record.queue, name) for name, record in records if record.bridge.src_is_local]
        deployed = self.names.queues.values()
        known = {*deployed, *bound, *(queue for queue, _ in read if queue is not None and queue not in made)}
        return QueuesView(
            address=self.registrar.here,
            patterns=self.names.patterns,
            kms_key_arn=self.kms_key_arn,
            queues=tuple(
                QueueView(
                    name=self.names.shown(queue),
                    queue=queue,
                    deployed=queue in deployed,
                    bindings=bound[queue],
                    routes=tuple(name for reads, name in read if reads == queue),
                )
                for queue in sorted(known)
            ),
        )

    def bindings(self, exchange: str | None) -> BindingsView:
        """Return the bindings of an exchange, or of all. Raises `BadBinding` for one that isn't there."""
        bindings = self.registrar.exchanges.bindings()
        bound = bindings if exchange is None else bindings.of(bindings.exchange(exchange).name)
        return BindingsView(version=bindings.version, bindings=tuple(map(self.shown, bound)))

    def shown(self, binding: Binding) -> BindingDeclaration:
        """Return a binding by the name that people know its queue by."""
        return BindingDeclaration.of(binding, queue=self.names.shown(binding.queue))

    # Bindings, links and routes

    def bind(self, declaration: BindingDeclaration, *, replaces: bool = False) -> None:
        """Binds a queue, also in place of a binding with other arguments where it `replaces`. Raises `BadBinding`."""
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
        gone = [BridgeClosed(bridge.name) for bridge in of_peer if peer.refusal_of(bridge) is not None]
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
        self.registrar.advance([LinkTold(name, LinkEvent.CLOSE) for name in to_peer])

    def add_link(self, link: Link, *, declared: bool) -> None:
        """Declare a link. Raises `BadRoute` for one that can't be."""
        existing = [each.link for each in self.registrar.registry().links.values() if each.link.name != link.name]
        check_link(link, here=self.registrar.here.tag, existing=existing)
        if SERVED_MARK not in link.name and link.peer not in self.registrar.known.value():
            raise BadRoute(f"{link.name}: {no_peer(link.peer)}")
        added = [LinkAdded(link, declared=declared)]
        if declared:
            self.registrar.take_in(added)
        else:
            self.registrar.advance(added)

    def tell_link(self, name: str, news: Command | LinkEvent) -> None:
        """Tells a link what to do. Raises `NoSuch`."""
        if name not in self.registrar.registry().links:
            raise NoSuch(f"no such link: {name}")
        self.registrar.advance([LinkTold(name, news)])

    def add_bridge(self, bridge: Bridge) -> None:
        """Declare a route. Raises `BadRoute` or `BadBinding` for one that can't be."""
        self.check_filter(bridge)
        existing = bridge.src if bridge.src_is_queue else bridge.queue
        if bridge.src_is_local and existing is not None:
            self.names.readable(existing)  # said at once; of one that is pulled the source says it
        self.registrar.advance([BridgeAdded(bridge)])
        self.note_tag(bridge)

    def change_bridge(self, bridge: Bridge) -> None:
        """Give a route other options where it stands. Raises `NoSuch`, or `BadRoute` for one that can't be so."""
        if self.record(bridge.name).declared:
            raise BadRoute(f"{bridge.name}: it is declared in cdk.json: change it there, and deploy")
        self.check_filter(bridge)
        self.registrar.advance([BridgeChanged(bridge)])
        self.note_tag(bridge)

    def check_filter(self, bridge: Bridge) -> None:
        """Check that a route's filter can be used. Raises `BadRoute`."""
        reason = self.registrar.filter_refusal(bridge)
        if reason is not None:
            raise BadRoute(f"{bridge.name}: {reason}")

    def close_bridge(self, asked: CloseBridge) -> None:
        """Take a route away. Raises `NoSuch`."""
        link = self.record(asked.name).bridge.link
        registry = self.registrar.advance([BridgeClosed(asked.name)])
        if asked.del_empty_link and all(each.closing for each in registry.bridges_of(link)):
            self.registrar.advance([LinkTold(link, LinkEvent.CLOSE)])

    def tell_bridge(self, asked: TellBridge) -> None:
        """Tells a route what to do. Raises `NoSuch`, or `BadRoute` for one that is its peer's to tell."""
        record = self.record(asked.name)
        if record.served:
            raise BadRoute(f"{asked.name}: the site that it goes to asked for it: {asked.what} it there")
        if asked.what is Command.DRAIN and not record.bridge.src_is_local:
            raise BadRoute(f"{asked.name}: it is pulled: drain its link, or the route at its source")
        is_links = asked.what is Command.RETRY
        link = LinkTold(record.bridge.link, asked.what)
        self.registrar.advance([link if is_links else BridgeTold(asked.name, asked.what)])

    def redrive(self, name: str) -> Redriven:
        """Put a route's dead letters back. Raises `NoSuch`, or `BadRoute` for one that begins elsewhere."""
        queue = self.record(name).queue
        if queue is None:
            raise BadRoute(f"{name}: its dead letters are at its source: redrive it there")
        return Redriven(redriven=self.upkeep.redrive(queue))

    def record(self, name: str) -> BridgeRecord:
        """Return what is known of a route. Raises `NoSuch`."""
        record = self.registrar.registry().bridges.get(name)
        if record is None:
            raise NoSuch(f"no such route: {name}")
        return record

    # What comes by itself

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
            BridgeClosed(route.name)
            for route in before.routes
            if route.name not in kept or not route.can_become(kept[route.name])
        ]
        closed_links = [LinkTold(link.name, LinkEvent.CLOSE) for link in before.links if link not in declared.links]
        for closing in gone:
            self.registrar.advance([closing], ticks=False)
        for closed in closed_links:
            self.registrar.advance([closed], ticks=False)
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
        self.registrar.take_in([BridgeChanged(route) if changes else BridgeAdded(route, declared=True)])
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


def _shown_link(record: LinkRecord) -> LinkView:
    return LinkView(
        **asdict(record.link),
        served=record.served,
        declared=record.declared,
        status=record.status,
        exchanges=record.exchanges,
        address=record.address,
    )


def _shown_way(exchange: str, way: Way) -> WayView:
    return WayView(
        exchange=exchange,
        origin=way.origin,
        route=way.bridge,
        path=way.path,
        active=way.active,
        outages=way.outages,
        wants=len(way.wants),
        keys=tuple(sorted(want.key for want in way.wants)[:MAX_KEYS]),
    )
