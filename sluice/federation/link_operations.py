"""Changes that operators ask of a site's bindings, peers, links and routes, and that deployments declare.

Each raises a `BadConfiguration` for what the asker did wrong: nothing was changed then.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from sluice.errors import BadConfiguration, BadRoute
from sluice.federation.declared import BindingDeclaration
from sluice.federation.exchange_store import with_binding
from sluice.federation.links.links import Bridge, Link, check_link
from sluice.federation.links.peers import Peer, check_peer, no_peer
from sluice.federation.links.registry import SERVED_MARK, BridgeRecord, fed_queues
from sluice.federation.links.states import Command, LinkEvent
from sluice.federation.links.transitions import (
    BridgeAdded,
    BridgeChanged,
    BridgeClosed,
    BridgeTold,
    LinkAdded,
    LinkTold,
)
from sluice.federation.matching.bindings import Destination
from sluice.federation.operations import CloseBridge, TellBridge
from sluice.federation.registrar import Registrar
from sluice.federation.settings import SiteNames


class NoSuch(BadConfiguration):
    """There is no link or route of this name."""


class LinkOperations(msgspec.Struct, frozen=True, kw_only=True):
    """One invocation's."""

    registrar: Registrar
    names: SiteNames
    hear_peers: Callable[[], None]  # let what peers send be read: where there are none, it isn't

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
        """Tell a link what to do. Raises `NoSuch`."""
        if name not in self.registrar.registry().links:
            raise NoSuch(f"no such link: {name}")
        self.registrar.advance([LinkTold(name, news)])

    def add_bridge(self, bridge: Bridge) -> None:
        """Declare a route. Raises `BadRoute` or `BadBinding` for one that can't be."""
        self.check_filter(bridge)
        if bridge.src_is_local and bridge.src_is_queue:
            self.names.readable(bridge.src)  # said at once; of one that is pulled the source says it
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

    def record(self, name: str) -> BridgeRecord:
        """Return what is known of a route. Raises `NoSuch`."""
        record = self.registrar.registry().bridges.get(name)
        if record is None:
            raise NoSuch(f"no such route: {name}")
        return record
