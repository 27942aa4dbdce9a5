"""Adds, finds and deletes links and routes between two sites.

A route is declared at one of its two sites: at the destination, which then pulls, or at the source, which then pushes.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from sluice.errors import BadRoute, SluiceError
from sluice.federation.links.links import Bridge, BridgeDeclaration, Introduction, Link, RouteKind
from sluice.federation.links.peers import RULES, Peer
from sluice.federation.links.states import LinkState
from sluice.federation.map.findings import Finding, list_route_findings
from sluice.federation.matching.metadata import is_tag
from sluice.federation.operations import AddBridge, AddLink, AddPeer, BridgeView, CloseLink, SiteView
from sluice.federation.topology.desired import LinkAccess
from sluice.operator.federated_sites import OpenSite, discover_sites, open_peer, open_site
from sluice.operator.site_names import REGION

POLL_S = 0.5
MAX_NAME_CHARACTERS = 100
MAX_SITES_CHECKED = 16  # Reading a site takes about a second, so a new route is checked at few sites.
HASH_CHARACTERS = 12
# A link stays in these states until an operator intervenes.
STUCK_STATES = frozenset({LinkState.CLOSING, LinkState.FAILED, LinkState.PAUSED})

_LINK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:#*-]")
_PREFIXES = {RouteKind.STATIC: "", RouteKind.QUEUE: "queue-", RouteKind.DYNAMIC: "dynamic-"}


class DuplicateRoute(BadRoute):
    """Raised if a route to be added exists already."""


class NotOperational(SluiceError):
    """Raised if a new route doesn't forward messages in time, or won't until an operator intervenes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSite:
    """The other site of a link. If it wasn't read, `site` and `view` are None, and perhaps `address`, too."""

    tag: str
    address: Introduction | None = None
    site: OpenSite | None = None
    view: SiteView | None = None

    @classmethod
    def find(cls, name_or_tag: str) -> "PeerSite":
        """Read the site with this name. If the text is a tag, return a peer with only this tag, without a request."""
        if is_tag(name_or_tag) and not REGION.fullmatch(name_or_tag):
            return cls(tag=name_or_tag)
        site = open_site(name_or_tag)
        view = site.view()
        return cls(tag=view.tag, address=view.address, site=site, view=view)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnds:
    """The site that declares a link or a route, with its state (`view`), and the site at the other end (`peer`)."""

    site: OpenSite
    view: SiteView
    peer: PeerSite

    @classmethod
    def from_names(cls, dest: str, src: str, *, src_local: bool) -> "LinkEnds":
        """Read a route's two sites. `src_local` means that the source declares the route, which then pushes."""
        declaring, peer = (src, dest) if src_local else (dest, src)
        return cls.with_peer(declaring, PeerSite.find(peer))

    @classmethod
    def with_peer(cls, here: str, peer: PeerSite) -> "LinkEnds":
        """Read the declaring site, and combine it with a peer that was found already."""
        site = open_site(here)
        return cls(site=site, view=site.view(), peer=peer)


def add_link(
    ends: LinkEnds, *, name: str | None = None, durable: bool = True, sqs_urls: Sequence[str] = (), **role: str | None
) -> Link:
    """Declare a link, whose name is `name` or the peer's tag. Raises `BadRoute` and the site's errors.

    `role` (`role_arn` and `external_id`) and `sqs_urls` (SQS endpoints) override values of the peer's address.
    """
    link = _build_link(ends, name or ends.peer.tag, durable=durable, sqs_urls=sqs_urls, **role)
    declare_each_other(ends)
    ends.site.client.ask(AddLink(link=link))
    return link


def declare_each_other(ends: LinkEnds, *, route: BridgeDeclaration | None = None) -> None:
    """Declare each of two sites as the other's peer, if the credentials allow it.

    Each site gets only the permissions that `route` needs. Raises `BadRoute` if both are the same site.
    """
    if ends.peer.tag == ends.view.tag:
        raise BadRoute(f"{ends.view.tag}: a site isn't linked to itself")
    address, pull = ends.peer.address, None if route is None or route.src_is_local else route
    peer = ends.view.find_peer(ends.peer.tag) if address is None else Peer.from_introduction(address)
    if peer is not None:
        declare_peer(ends.site, ends.view, peer, dest_of=pull)
    if ends.peer.site is not None and ends.peer.view is not None:
        own = Peer.from_introduction(ends.view.address)
        declare_peer(ends.peer.site, ends.peer.view, own, source_of=pull, dest_of=route if pull is None else None)


def _build_link(ends: LinkEnds, name: str, *, durable: bool, sqs_urls: Sequence[str] = (), **role: str | None) -> Link:
    address = ends.peer.address
    if address is None:
        raise BadRoute(
            f"no link goes from {ends.view.tag} to {ends.peer.tag}: name the peer by its region, or have its address"
            " from `sluice link address` there, and pass that to `sluice link add --address`"
        )
    if not _LINK_NAME.fullmatch(name):
        raise BadRoute(f"{name!r}: a link's name is 1 to 64 of A-Za-z0-9_.-")
    access = LinkAccess.default_for(address, here=ends.view.address)
    if role.get("role_arn") is not None:
        access = replace(access, external_id=None)  # The default external id belongs to the default role.
    access = replace(access, **{name: value for name, value in role.items() if value is not None})
    if sqs_urls:
        access = replace(access, endpoints=tuple(replace(address.endpoint, sqs_url=url) for url in sqs_urls))
    return Link(name=name, peer=address.tag, durable=durable, **asdict(access))


def _find_link(ends: LinkEnds, name: str | None) -> str | None:
    """Return the name of the link to the peer; None if there is no link. Raises `BadRoute` if several links match."""
    names = [link.name for link in ends.view.links_to(ends.peer.tag)]
    if name is not None:
        other = ends.view.find_link(name)
        if other is not None and name not in names:
            raise BadRoute(f"{name} is a link to {other.peer}, {other.status.state}: not one to {ends.peer.tag}")
        return name if name in names else None
    if len(names) > 1 and ends.peer.tag not in names:
        raise BadRoute(f"{len(names)} links go to {ends.peer.tag}: say which with --link: {', '.join(names)}")
    return ends.peer.tag if ends.peer.tag in names else next(iter(names), None)


def delete_link(ends: LinkEnds, *, name: str | None, force: bool = False) -> tuple[str, list[str]]:
    """Close the link to the peer with its routes. Returns the link's name, and a text for each permission that stays.

    With `force`, a link that is closing is removed even if its peer can't be reached. Raises `BadRoute` without a link.
    """
    closing = ends.view.find_link(name or ends.peer.tag)
    is_left = force and closing is not None and closing.status.is_ending and closing.peer == ends.peer.tag
    link_name = closing.name if closing is not None and is_left else _find_link(ends, name)
    if link_name is None:
        named = "" if name is None else f" {name}"
        raise BadRoute(f"no link{named} goes from {ends.view.tag} to {ends.peer.tag}")
    ends.site.client.ask(CloseLink(name=link_name, force=force))
    closed_routes = [route for route in ends.view.bridges if route.link == link_name]
    return link_name, withdraw_grants(ends, closed_routes)


def add_route(ends: LinkEnds, declaration: BridgeDeclaration, *, link: str | None) -> Bridge:
    """Declare a route, and a link if there is none to the peer. The route's name is derived from the declaration.

    Raises `DuplicateRoute`, `BadRoute`, and the site's errors.
    """
    source, dest = (ends.view, ends.peer.view) if declaration.src_is_local else (ends.peer.view, ends.view)
    exchanges = [(dest, declaration.dest), *([] if declaration.src_is_queue else [(source, declaration.src)])]
    for view, exchange in exchanges:  # A site that wasn't read checks itself whether the exchange exists.
        if view is not None and exchange not in {exchange_view.name for exchange_view in view.exchanges}:
            raise BadRoute(f"no such exchange at {view.tag}: {exchange}")
    declare_each_other(ends, route=declaration)
    link_name = _find_link(ends, link)
    if link_name is None:
        new_link = _build_link(ends, link or ends.peer.tag, durable=declaration.durable)
        link_name = ends.site.client.ask(AddLink(link=new_link)).name
    route = Bridge(**asdict(declaration), link=link_name, name=build_route_name(declaration, link_name))
    for other in ends.view.bridges:
        if route.name == other.name or route.identity == other.identity:
            if other.state == LinkState.CLOSING:
                raise BadRoute(f"{other.name} exists and is being closed: try again in a minute")
            raise DuplicateRoute(f"duplicate route: it is {other.name}, {other.state}")
    ends.site.client.ask(AddBridge(bridge=route))
    return route


def build_route_name(bridge: BridgeDeclaration, link: str) -> str:
    """Build a route's name from its direction, link, source, destination and key. Adds a hash if these don't fit.

    Routes of a site that differ in any of these have different names.
    """
    start = f"{_PREFIXES[bridge.kind]}{'to' if bridge.src_is_local else 'from'}-{link}"
    parts = [start, bridge.src, *([] if bridge.dynamic else [bridge.dest]), bridge.key]
    plain = ":".join(parts if bridge.key else parts[:-1])
    # A colon in a part before the key would make the route's name ambiguous.
    is_clear = ":" not in "".join(parts[:-1]) and not _NOT_IN_NAMES.search(plain)
    if is_clear and len(plain) <= MAX_NAME_CHARACTERS:
        return plain
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    return f"{_NOT_IN_NAMES.sub('-', plain)[: MAX_NAME_CHARACTERS - HASH_CHARACTERS - 1]}.{digest}"


def withdraw_all_grants(site: OpenSite, view: SiteView, closed_routes: Sequence[BridgeView]) -> list[str]:
    """Call `withdraw_grants` for closed routes of all peers. `view` is the site's state before they were closed."""
    links = {link.peer: link for link in view.links if link.name in {route.link for route in closed_routes}}
    kept: list[str] = []
    for tag, link in links.items():
        try:
            peer_site, peer_view = open_peer(site, view, link)
            peer = PeerSite(tag=tag, site=peer_site, view=peer_view)
        except SluiceError:
            peer = PeerSite(tag=tag)
        kept += withdraw_grants(LinkEnds(site=site, view=view, peer=peer), closed_routes)
    return kept


def withdraw_grants(ends: LinkEnds, closed_routes: Sequence[BridgeView]) -> list[str]:
    """Withdraw the permissions that the peer's site gave for closed routes, if no other route needs them.

    Permissions to publish stay, because messages are still in the routes' queues. Returns a text for each of these.
    """
    peer_view, tag = ends.peer.view, ends.peer.tag
    links = {link.name for link in ends.view.links if link.peer == tag and not link.served}
    routes = [route for route in ends.view.bridges if route.link in links]
    gone = [route for route in routes if route in closed_routes]
    kept = [route for route in routes if route not in closed_routes and route.state != LinkState.CLOSING]
    here = None if peer_view is None else peer_view.find_peer(ends.view.tag)
    if peer_view is not None and ends.peer.site is not None and here is not None and not here.declared:
        following_keys = {exchange.name for exchange in peer_view.exchanges if exchange.type.follows_keys}
        pulled, needed = ([route for route in part if not route.src_is_local] for part in (gone, kept))
        rest = here.withdraw_grants(pulled, needed, key_exchanges=following_keys)
        if rest != here:
            ends.peer.site.client.ask(AddPeer(peer=rest))
    ways = {(route.dest, route.src_is_local) for route in gone}
    left = [f"{tag} wasn't read: what it permits stays, see `sluice peer list` there"] if gone and not peer_view else []
    for exchange, is_pushed in sorted(ways - {(route.dest, route.src_is_local) for route in kept}):
        rule = here if is_pushed else ends.view.find_peer(tag)
        if rule is not None and not rule.declared and exchange in rule.pushes:
            dest, site = (ends.peer.tag, ends.peer.site or ends.site) if is_pushed else (ends.view.tag, ends.site)
            change = f"`sluice peer add {site.name}` replaces its permissions"
            left.append(f"{rule.tag} may still publish to {exchange} at {dest}: {change}")
    return left


def find_route(ends: LinkEnds, declaration: BridgeDeclaration, *, link: str | None) -> BridgeView:
    """Find the only route that matches a declaration, over `link` or any link (None). Raises `BadRoute`."""
    links = {link_view.name for link_view in ends.view.links_to(ends.peer.tag) if link in {None, link_view.name}}
    routes = [route for route in ends.view.bridges if route.link in links and _is_same_route(route, declaration)]
    if len(routes) > 1:
        raise BadRoute(f"{len(routes)} routes: say which with --link: {', '.join(route.link for route in routes)}")
    if not routes:
        described = f"{declaration.src} to {declaration.dest}" + (f" by {declaration.key!r}" if declaration.key else "")
        direction = "pushed" if declaration.src_is_local else "pulled"
        raise BadRoute(f"no such route between {ends.view.tag} and {ends.peer.tag}: {described}, {direction}")
    return routes[0]


def _is_same_route(bridge: BridgeView, declaration: BridgeDeclaration) -> bool:
    # A site's own queue has an internal name (`src`) and a public name (`reads`).
    return (
        (bridge.kind, bridge.src_is_local, bridge.dest, bridge.key)
        == (declaration.kind, declaration.src_is_local, declaration.dest, declaration.key)
        and declaration.src in {bridge.src, bridge.reads if bridge.src_is_queue else bridge.src}
        and bridge.state != LinkState.CLOSING
    )


def wait_until_operational(site: OpenSite, name: str, *, timeout_s: float) -> BridgeView:
    """Wait up to `timeout_s` seconds until a route forwards messages, and return the route. Raises `NotOperational`."""
    deadline = time.monotonic() + timeout_s
    while True:
        view = site.view()
        route = view.find_bridge(name)
        if route is None:
            raise NotOperational(f"{name}: the route was deleted in the meantime")
        has_queue = route.reads is not None or not route.src_is_local
        carries = route.state == LinkState.OPERATIONAL and route.error is None and has_queue
        if timeout_s == 0 or carries:
            return route
        link = view.find_link(route.link)
        description = f"{route.state}, and its link is gone"
        if link is not None:
            error = route.error or link.status.last_error
            reason = f": {error}" if error is not None and error not in route.state else ""
            description = f"{route.state}, its link is {link.status.state}{reason}"
        differs = route.dynamic and route.error is not None  # A dynamic route's two exchanges need the same type.
        if link is None or link.status.state in STUCK_STATES or differs:
            raise NotOperational(f"{name} is there, but isn't Operational: {description}")
        if time.monotonic() > deadline:
            raise NotOperational(f"{name} is there, but isn't Operational after {timeout_s:g} s: {description}")
        time.sleep(POLL_S)


def find_route_problems(ends: LinkEnds, route: Bridge) -> tuple[Finding, ...]:
    """Find problems of a new route by which messages are duplicated or lost, from the sites that are linked nearby.

    Returns no problems if sites can't be read, because the route was added and `route map` shows problems, too.
    """
    try:
        topology = discover_sites([str(ends.site.name)], most=MAX_SITES_CHECKED).topology
    except SluiceError:
        return ()
    return list_route_findings(topology, site=ends.view.tag, name=route.name)


def declare_peer(
    site: OpenSite,
    view: SiteView,
    peer: Peer,
    *,
    source_of: BridgeDeclaration | None = None,
    dest_of: BridgeDeclaration | None = None,
) -> None:
    """Declare a peer at a site, whose state is `view`, if the peer is new or has changed. The peer's permissions stay.

    The peer also gets the permissions that a route from (`source_of`) or to (`dest_of`) the site needs. This function
    doesn't change permissions of a peer that the site's deployment declares.
    """
    known = view.find_peer(peer.tag)
    if known is not None:
        kept = {name: getattr(known, name) for name in (*RULES, "tags", "declared", "granted")}
        peer = replace(peer, **kept)
    if not peer.declared:
        if source_of is not None:
            follows_keys = source_of.src in {exchange.name for exchange in view.exchanges if exchange.type.follows_keys}
            peer = peer.grant_source(source_of, follows_keys=follows_keys, account=view.address.account)
        peer = peer if dest_of is None else peer.grant_destination(dest_of)
    if peer != known:
        site.client.ask(AddPeer(peer=peer))
