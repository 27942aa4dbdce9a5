"""Links and routes between two sites, as they are declared, found again and taken away.

A route is declared at one of its sites: at the destination, which then pulls, or at the source, which pushes.
"""

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import asdict, replace

from sluice.errors import BadRoute, SluiceError
from sluice.federation.links.links import Address, Bridge, BridgeDeclaration, Introduction, Link, RouteKind
from sluice.federation.links.peers import Peer
from sluice.federation.links.states import LinkState
from sluice.federation.map.findings import Finding, of_route
from sluice.federation.matching.metadata import is_tag
from sluice.federation.operations import AddBridge, AddLink, AddPeer, BridgeView, CloseLink, LinkView, SiteView
from sluice.operator.federated_sites import OpenSite, open_site, walk
from sluice.operator.site_names import REGION

POLL_S = 0.5
MAX_NAME_CHARACTERS = 100
MAX_NEARBY = 16  # sites that are asked for what a new route does: with each a second goes by
HASH_CHARACTERS = 12
NOT_BY_WAITING = frozenset({LinkState.CLOSING, LinkState.FAILED, LinkState.PAUSED})  # a link in these stays so

_LINK_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:#*-]")
_PREFIXES = {RouteKind.STATIC: "", RouteKind.QUEUE: "queue-", RouteKind.DYNAMIC: "dynamic-"}


class Duplicate(BadRoute):
    """The route is there already."""


class NotOperational(SluiceError):
    """A route that was added and doesn't carry messages yet, or never will by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarEnd:
    """The other site. `site` and `view` are None where it wasn't asked, `address` where only its tag is known."""

    tag: str
    address: Introduction | None = None
    site: OpenSite | None = None
    view: SiteView | None = None

    @classmethod
    def named(cls, text: str) -> "FarEnd":
        """From a site, which is asked, or from the tag of one that is linked already."""
        if is_tag(text) and not REGION.fullmatch(text):
            return cls(tag=text)
        site = open_site(text)
        view = site.view()
        return cls(tag=view.tag, address=view.address, site=site, view=view)

    @classmethod
    def at(cls, address: Introduction) -> "FarEnd":
        """From what `sluice link address` printed elsewhere."""
        return cls(tag=address.tag, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The site that declares a link or a route, as it was a moment ago, and its peer."""

    site: OpenSite
    view: SiteView
    peer: FarEnd

    @classmethod
    def of(cls, dest: str, src: str, *, src_local: bool) -> "Ends":
        """From what the command names: a push is declared at the source, anything else at the destination."""
        here, there = (src, dest) if src_local else (dest, src)
        return cls.between(here, FarEnd.named(there))

    @classmethod
    def between(cls, here: str, peer: FarEnd) -> "Ends":
        """With a peer that is known already."""
        site = open_site(here)
        return cls(site=site, view=site.view(), peer=peer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the peer is reached, where its address doesn't say all: by which role, and over which endpoints."""

    role_arn: str | None = None
    external_id: str | None = None
    sqs_urls: Sequence[str] = ()


# Links


def add_link(ends: Ends, *, name: str | None = None, durable: bool = True, access: Access | None = None) -> Link:
    """Declare a link by the peer's tag, or by `name`. Raises `BadRoute`, or what the site refuses it with."""
    link = _link(ends, name or ends.peer.tag, durable=durable, access=access or Access())
    introduce_both(ends)
    ends.site.client.ask(AddLink(link=link))
    return link


def introduce_both(ends: Ends, *, queue: str | None = None) -> None:
    """Let each of two sites be the other's peer, as far as they can be asked.

    `queue` is at the peer, and this site may empty it. Raises `BadRoute` where they are one.
    """
    if ends.peer.tag == ends.view.tag:
        raise BadRoute(f"{ends.view.tag}: a site isn't linked to itself")
    if ends.peer.address is not None:
        introduce(ends.site, ends.view, ends.peer.address)
    if ends.peer.site is not None and ends.peer.view is not None:
        introduce(ends.peer.site, ends.peer.view, ends.view.address, queue=queue)


def _link(ends: Ends, name: str, *, durable: bool, access: Access) -> Link:
    address = ends.peer.address
    if address is None:
        raise BadRoute(
            f"no link goes from {ends.view.tag} to {ends.peer.tag}: name the peer by its region, or have its address"
            " from `sluice link address` there, and pass that to `sluice link add --address`"
        )
    if not _LINK_NAME.fullmatch(name):
        raise BadRoute(f"{name!r}: a link's name is 1 to 64 of A-Za-z0-9_.-")
    role_arn, external_id = _role(ends, address, access)
    return Link(
        name=name,
        peer=address.tag,
        endpoints=tuple(replace(address.endpoint, sqs_url=url) for url in access.sqs_urls) or (address.endpoint,),
        role_arn=role_arn,
        external_id=external_id,
        durable=durable,
    )


def _role(ends: Ends, address: Address, access: Access) -> tuple[str | None, str | None]:
    if access.role_arn is not None:
        return access.role_arn, access.external_id
    # The peer's role is for other accounts: within one, a site's own roles may send to all its queues.
    if address.account == ends.view.address.account or address.role_arn is None:
        return None, access.external_id
    return address.role_arn, access.external_id or address.external_id


def link_between(ends: Ends, *, name: str | None, durable: bool) -> str:
    """Find the link to use, or make one; its name. Raises `BadRoute` where several would do."""
    found = _existing_link(ends, name)
    if found is not None:
        return found
    link = _link(ends, name or ends.peer.tag, durable=durable, access=Access())
    ends.site.client.ask(AddLink(link=link))
    return link.name


def _existing_link(ends: Ends, name: str | None) -> str | None:
    names = [each.name for each in ends.view.links_to(ends.peer.tag)]
    if name is not None:
        other = ends.view.link_named(name)
        if other is not None and name not in names:
            raise BadRoute(f"{name} is a link to {other.peer}, {other.status.state}: not one to {ends.peer.tag}")
        return name if name in names else None
    if len(names) > 1 and ends.peer.tag not in names:
        raise BadRoute(f"{len(names)} links go to {ends.peer.tag}: say which with --link: {', '.join(names)}")
    return ends.peer.tag if ends.peer.tag in names else next(iter(names), None)


def delete_link(ends: Ends, *, name: str | None) -> str:
    """Close the link, and with it its routes; its name. Raises `BadRoute` where there is none."""
    found = _existing_link(ends, name)
    if found is None:
        named = "" if name is None else f" {name}"
        raise BadRoute(f"no link{named} goes from {ends.view.tag} to {ends.peer.tag}")
    ends.site.client.ask(CloseLink(name=found))
    return found


# Routes


def add_route(ends: Ends, wanted: BridgeDeclaration, *, link: str | None) -> Bridge:
    """Declare a route; its name and its link are made here. The same command makes the same name.

    Raises `Duplicate`, `BadRoute`, or what the site refuses it with.
    """
    source, dest = (ends.view, ends.peer.view) if wanted.src_is_local else (ends.peer.view, ends.view)
    named = [(dest, wanted.dest)] if wanted.src_is_queue else [(dest, wanted.dest), (source, wanted.src)]
    for view, exchange in named:  # of a site that wasn't asked the sites find out
        if view is not None and exchange not in {each.name for each in view.exchanges}:
            raise BadRoute(f"no such exchange at {view.tag}: {exchange}")
    introduce_both(ends, queue=wanted.src if wanted.src_is_queue and not wanted.src_is_local else None)
    link_name = link_between(ends, name=link, durable=wanted.durable)
    route = Bridge(**asdict(wanted), link=link_name, name=route_name(wanted, link_name))
    for other in ends.view.bridges:
        if route.name == other.name or route.way == other.way:
            if other.state == LinkState.CLOSING:
                raise BadRoute(f"{other.name} is there, and about to go: try again in a minute")
            raise Duplicate(f"duplicate route: it is {other.name}, {other.state}")
    ends.site.client.ask(AddBridge(bridge=route))
    return route


def route_name(bridge: BridgeDeclaration, link: str) -> str:
    """Name a route by its way, its link, and what it goes from and to; by a hash where that can't be said.

    No two routes of a site that differ in these have one name.
    """
    start = f"{_PREFIXES[bridge.kind]}{'to' if bridge.src_is_local else 'from'}-{link}"
    parts = [start, bridge.src, *([] if bridge.dynamic else [bridge.dest]), bridge.key]
    plain = ":".join(parts if bridge.key else parts[:-1])
    # A colon in what comes before the key could be any part's.
    is_clear = ":" not in "".join(parts[:-1]) and not _NOT_IN_NAMES.search(plain)
    if is_clear and len(plain) <= MAX_NAME_CHARACTERS:
        return plain
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    return f"{_NOT_IN_NAMES.sub('-', plain)[: MAX_NAME_CHARACTERS - HASH_CHARACTERS - 1]}.{digest}"


def find_route(ends: Ends, wanted: BridgeDeclaration, *, link: str | None) -> BridgeView:
    """Find the route that goes the way of `wanted` over the link, or over any. Raises `BadRoute`."""
    links = {each.name for each in ends.view.links_to(ends.peer.tag) if link in {None, each.name}}
    found = [each for each in ends.view.bridges if each.link in links and _goes_like(each, wanted)]
    if len(found) > 1:
        raise BadRoute(f"{len(found)} routes: say which with --link: {', '.join(each.link for each in found)}")
    if not found:
        what = f"{wanted.src} to {wanted.dest}" + (f" by {wanted.key!r}" if wanted.key else "")
        way = "pushed" if wanted.src_is_local else "pulled"
        raise BadRoute(f"no such route between {ends.view.tag} and {ends.peer.tag}: {what}, {way}")
    return found[0]


def _goes_like(bridge: BridgeView, wanted: BridgeDeclaration) -> bool:
    # A queue that is this site's own has two names: the one it reads by is the one that people know.
    return (
        (bridge.kind, bridge.src_is_local, bridge.dest, bridge.key)
        == (wanted.kind, wanted.src_is_local, wanted.dest, wanted.key)
        and wanted.src in {bridge.src, bridge.reads if bridge.src_is_queue else bridge.src}
        and bridge.state != LinkState.CLOSING
    )


def wait_until_operational(site: OpenSite, name: str, *, timeout_s: float) -> BridgeView:
    """Wait until the route carries messages, not at all where `timeout_s` is 0; the route. Raises `NotOperational`."""
    deadline = time.monotonic() + timeout_s
    while True:
        view = site.view()
        shown = view.bridge_named(name)
        if shown is None:
            raise NotOperational(f"{name}: it is gone")
        has_queue = shown.reads is not None or not shown.src_is_local
        carries = shown.state == LinkState.OPERATIONAL and shown.error is None and has_queue
        if timeout_s == 0 or carries:
            return shown
        link = view.link_named(shown.link)
        said = _in_words(shown, link)
        differs = shown.dynamic and shown.error is not None  # between exchanges of two types
        if link is None or link.status.state in NOT_BY_WAITING or differs:
            raise NotOperational(f"{name} is there, but isn't Operational: {said}")
        if time.monotonic() > deadline:
            raise NotOperational(f"{name} is there, but isn't Operational after {timeout_s:g} s: {said}")
        time.sleep(POLL_S)


def _in_words(shown: BridgeView, link: LinkView | None) -> str:
    """Return the route's state and why; where it is pulled, its link's, too."""
    if link is None:
        return f"{shown.state}, and its link is gone"
    error = shown.error or link.status.last_error
    why = f": {error}" if error is not None and error not in shown.state else ""
    return f"{shown.state}, its link is {link.status.state}{why}"


def warnings_of(ends: Ends, route: Bridge) -> tuple[Finding, ...]:
    """Say what messages a route that was just added doubles or loses, as far as the sites nearby know.

    Nothing where they can't be asked: the route is there, and the map tells of it.
    """
    try:
        topology = walk([str(ends.site.name)], most=MAX_NEARBY).topology
    except SluiceError:
        return ()
    return of_route(topology, site=ends.view.tag, name=route.name)


def introduce(site: OpenSite, view: SiteView, address: Introduction, *, queue: str | None = None) -> None:
    """Declare whoever is at this address as a peer, where it isn't one as it is now. What it may stays.

    But for `queue`, which it may empty from now on: who names both sites of a queue route may let it.
    """
    known = view.peer_tagged(address.tag)
    peer = Peer.at(address)
    if known is not None:
        peer = replace(peer, pulls=known.pulls, pushes=known.pushes, queues=known.queues)
    if queue is not None and not peer.may_take_from(queue):
        peer = replace(peer, queues=(*peer.queues, queue))
    if peer != known:
        site.client.ask(AddPeer(peer=peer))
