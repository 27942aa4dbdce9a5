"""The current state of sites, and its export as a topology file. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from sluice.federation.bridge_provisioner import BRIDGE_QUEUE_PREFIX
from sluice.federation.declared import BindingDeclaration
from sluice.federation.links.links import Bridge, Link, find_site_tags
from sluice.federation.links.peers import Peer
from sluice.federation.links.registry import SERVED_MARK
from sluice.federation.links.states import LinkState
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange
from sluice.federation.operations import QueuesView, SiteView
from sluice.federation.topology.desired import DesiredLink, DesiredPeer, DesiredSite, DesiredTopology
from sluice.federation.topology.entries import EXCHANGE, LINK, PEER, ROUTE, Entries, Key, get_entry_key, index_by_key


@dataclass(frozen=True)
class SiteState:
    """The current state of a site. `at` is the site's name in commands."""

    at: str
    view: SiteView
    all_bindings: tuple[BindingDeclaration, ...]
    queues: QueuesView

    @cached_property
    def entries(self) -> Entries:
        """The site's own entries that aren't closing. Links and routes that peers requested are the peers' entries."""
        view = self.view
        return index_by_key(
            [
                # The site itself records the tags of a peer's routes, and the permissions that were granted for routes.
                *(replace(peer, tags=(), declared=False, granted=UNSET) for peer in view.peers),
                *(exchange for exchange in view.exchanges if exchange not in STANDARD_EXCHANGES),
                *self.bindings,
                *(link.to_link() for link in view.links if not link.served and not link.status.is_ending),
                *(route.to_bridge() for route in view.bridges if not route.served and route.state != LinkState.CLOSING),
            ]
        )

    @cached_property
    def persistent_entries(self) -> Entries:
        """The entries, except non-durable links without a route, because such links close by themselves."""
        used = {route.link for route in self.entries.values() if isinstance(route, Bridge)}
        passing = [link for link in self.entries.values() if isinstance(link, Link) and not link.durable]
        gone = {get_entry_key(link) for link in passing if link.name not in used}
        return {key: entry for key, entry in self.entries.items() if key not in gone}

    @property
    def bindings(self) -> list[BindingDeclaration]:
        """The bindings of all queues except the bridge queues of exchange routes."""
        of_routes = {route.reads for route in self.view.bridges if route.src_is_local and not route.src_is_queue}
        # A bridge queue that is being created again is recognized only by its name.
        users = (binding for binding in self.all_bindings if not binding.queue.startswith(BRIDGE_QUEUE_PREFIX))
        return [binding for binding in users if binding.queue not in of_routes]

    @cached_property
    def declared(self) -> Entries:
        """The entries that the site's deployment declares."""
        view = self.view
        bindings = (replace(binding, queue=self.display_name(binding.queue)) for binding in view.declared.bindings)
        return index_by_key(
            [
                *(peer for peer in view.peers if peer.declared),
                *replace(view.declared, bindings=tuple(bindings)).entries,
            ]
        )

    def display_name(self, queue: str) -> str:
        """Return the name by which a queue is shown: its logical name, or its SQS name."""
        known = self.queues.find_queue(queue)
        return queue if known is None else known.name


def list_closing_entries(view: SiteView) -> list[Key]:
    """Return the keys of all closing links and routes, including those that peers requested."""
    routes = [(ROUTE, route.name) for route in view.bridges if route.state == LinkState.CLOSING]
    return [*routes, *((LINK, link.name) for link in view.links if link.status.is_ending)]


def describe_blocking(
    views: Mapping[str, SiteView], needed: Collection[tuple[str, str, str]], identities: Collection[tuple[Any, ...]]
) -> list[str]:
    """Describe the closing links and routes that still use entries which a plan's steps remove or create again.

    `needed` has the entries of these steps, as site, kind and name. `identities` has those of the routes to create.
    """
    blocking: list[str] = []
    for tag, view in views.items():
        for link in view.links:
            peer = link.peer
            uses = {(tag, PEER, peer), (peer, PEER, tag)} | _list_keys_at_both_ends(LINK, link.name, tag, peer)
            if link.status.is_ending and not uses.isdisjoint(needed):
                blocking.append(f"{LINK} {link.name} at {tag}")
            for route in view.bridges:
                if route.link != link.name or route.state != LinkState.CLOSING:
                    continue
                source, dest = find_site_tags(route, link, here=tag)
                ends = {(source, EXCHANGE, route.src), (dest, EXCHANGE, route.dest)}
                used = uses | ends | _list_keys_at_both_ends(ROUTE, route.name, tag, peer)
                if not used.isdisjoint(needed) or (tag, *route.identity) in identities:
                    blocking.append(f"{ROUTE} {route.name} at {tag}")
    return blocking


def _list_keys_at_both_ends(kind: str, name: str, tag: str, peer: str) -> set[tuple[str, str, str]]:
    """Return the keys of a link or route here and, if the peer requested it, at the peer."""
    own_name = name.removesuffix(SERVED_MARK + peer)
    return {(tag, kind, name), *([(peer, kind, own_name)] if own_name != name else [])}


def list_idle_routes(view: SiteView, routes: Iterable[str]) -> list[str]:
    """Return the routes that should forward messages but don't, with their states. Paused routes aren't returned."""
    bridges = [(name, view.find_bridge(name)) for name in routes]
    resting = {LinkState.OPERATIONAL, LinkState.PAUSED}
    return [
        f"{name}: {'it is gone' if shown is None else shown.state}"
        for name, shown in bridges
        if shown is None or shown.state not in resting
    ]


def export_topology(states: Mapping[str, SiteState]) -> DesiredTopology:
    """Return the topology file of these sites. Its order doesn't depend on the order of `states`."""
    addresses = {tag: state.view.address for tag, state in states.items()}
    sites: dict[str, DesiredSite] = {}
    for tag, state in sorted(states.items()):
        listed = [entry for _, entry in sorted(state.persistent_entries.items())]
        peers = [entry for entry in listed if isinstance(entry, Peer)]
        links = [entry for entry in listed if isinstance(entry, Link)]
        sites[tag] = DesiredSite(
            at=state.at,
            peers=tuple(DesiredPeer.from_peer(peer, address=addresses.get(peer.tag)) for peer in peers),
            exchanges=tuple(entry for entry in listed if isinstance(entry, Exchange)),
            bindings=tuple(entry for entry in listed if isinstance(entry, BindingDeclaration)),
            links=tuple(
                DesiredLink.from_link(link, here=addresses[tag], peer=addresses.get(link.peer)) for link in links
            ),
            routes=tuple(entry for entry in listed if isinstance(entry, Bridge)),
        )
    return DesiredTopology(sites=sites)
