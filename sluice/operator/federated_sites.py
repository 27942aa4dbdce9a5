"""Reads a federation's sites: a single site by its name, or all sites that can be reached over links."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from sluice.aws.deployment import NotUsable
from sluice.errors import BadConfiguration, Malformed, SluiceError
from sluice.federation.links.links import Link
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.matching.exchanges import Exchange, list_alternates
from sluice.federation.matching.indexes import Publication
from sluice.federation.operations import ListBindings, ListPaths, PathView, ShowSite, SiteView
from sluice.operations import Operation, R
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.operator.site_names import SiteName
from sluice.stages import parse_stage

MAX_SITES = 200


class LinksClient(Protocol):
    """A client of a site's links function, such as `sluice.operator.functions.ControlClient`."""

    def ask(self, operation: Operation[R], /) -> R:
        """Invoke an operation of `sluice.federation.operations`. Raises `RequestRefused`, `CallFailed`, `Malformed`."""


@dataclass(frozen=True, slots=True)
class OpenSite:
    """A site's name with a client that invokes the site's links function."""

    name: SiteName
    client: LinksClient

    def view(self) -> SiteView:
        """Fetch the site's current state. Raises `Malformed` and the client's errors."""
        try:
            return self.client.ask(ShowSite())
        except Malformed as error:
            raise Malformed(f"the site's answer can't be read, is it of another version? {error}") from error


def require_exchange(site: OpenSite, exchange: str) -> Mapping[str, Exchange]:
    """Return a site's exchanges by name. Raises `BadConfiguration` if the given exchange is not among them."""
    exchanges = {exchange_view.name: exchange_view for exchange_view in site.view().exchanges}
    if exchange not in exchanges:
        raise BadConfiguration(f"no such exchange at {site.name}: {exchange}; there are {', '.join(exchanges)}")
    return exchanges


def find_bound_queues(site: OpenSite, publication: Publication) -> AbstractSet[str]:
    """Return the queues that would get a published message. Raises the errors of `require_exchange`."""
    exchanges = require_exchange(site, publication.exchange)
    for name in list_alternates(publication.exchange, exchanges):
        index = exchanges[name].type.index_class()
        for bound in site.client.ask(ListBindings(exchange=name)).bindings:
            index.add(bound.queue, {bound.key: bound.arguments})
        if queues := index.find_queues(publication):
            return queues
    return frozenset()


OpenClient = Callable[[SiteName], LinksClient]


def open_site(site_name: str) -> OpenSite:
    """Parse a site's name and connect to it. Raises `BadSiteName` and connection errors."""
    return open_named(SiteName.parse(site_name))


def open_named(name: SiteName) -> OpenSite:
    """Connect to the site with this parsed name. Raises connection errors."""
    return OpenSite(name, _open_client.get()(name))


def _connect_client(name: SiteName) -> LinksClient:
    try:
        return ControlClient.connect(name.connect(), FEDERATION)
    except NotUsable as error:
        raise NotUsable(f"{name}: {error}") from error  # A command may read several sites, so the error names the site.


_open_client: ContextVar[OpenClient] = ContextVar("asking", default=_connect_client)


@contextmanager
def use_clients(open_client: OpenClient) -> Iterator[None]:
    """Create all sites' clients with `open_client` while the context is open. The console passes caching clients."""
    before = _open_client.set(open_client)
    try:
        yield
    finally:
        _open_client.reset(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredSites:
    """The sites that were found over links. `not_reached` has the error of each site that couldn't be read, by tag.

    `dynamic_paths` are the paths of dynamic routes, by the tag of the site that reports the paths.
    """

    topology: Topology
    not_reached: Mapping[str, str]
    dynamic_paths: Mapping[str, Sequence[PathView]]


def discover_sites(names: Iterable[str], *, most: int = MAX_SITES) -> DiscoveredSites:
    """Read the named sites and all sites that they are linked to, breadth first, until `most` sites have been read.

    Raises the errors of the named sites. Errors of linked sites are in `not_reached` of the result.
    """
    return discover_from((open_named(SiteName.parse(name)) for name in names), most=most)


def discover_from(sites: Iterable[OpenSite], *, most: int = MAX_SITES, with_paths: bool = True) -> DiscoveredSites:
    """Do the same as `discover_sites` for open sites. With `with_paths`, read the paths of dynamic routes, too."""
    views: dict[str, SiteView] = {}
    dynamic_paths: dict[str, Sequence[PathView]] = {}
    not_reached: dict[str, str] = {}
    to_visit = deque[tuple[OpenSite, SiteView, Link]]()  # links to follow, each with its site and the site's state
    for opened in sites:
        view = opened.view()
        to_visit.extend(_record_site(opened, view, views))
        dynamic_paths[view.tag] = _read_paths(opened, view) if with_paths else ()
    attempts: set[tuple[str, SiteName | None]] = set()
    while to_visit and len(views) < most:
        opened, view, link = to_visit.popleft()
        # A site that can't be read with the credentials for one neighbour may be readable with those for another.
        attempt = link.peer, _find_peer_name(opened, view, link)
        if link.peer in views or attempt in attempts:
            continue
        attempts.add(attempt)
        try:
            opened, view = open_peer(opened, view, link)
        except SluiceError as error:
            not_reached[link.peer] = str(error)
        else:
            to_visit.extend(_record_site(opened, view, views))
            dynamic_paths[view.tag] = _read_paths(opened, view) if with_paths else ()
    return DiscoveredSites(
        topology=Topology.from_sites(_build_map_site(view, views.keys()) for view in views.values()),
        not_reached={tag: reason for tag, reason in not_reached.items() if tag not in views},
        dynamic_paths=dynamic_paths,
    )


def _read_paths(opened: OpenSite, view: SiteView) -> Sequence[PathView]:
    """Read the paths of a site's dynamic routes. Without such routes, no request is sent."""
    if not any(bridge.dynamic for bridge in view.bridges):
        return ()
    return opened.client.ask(ListPaths()).paths


def _record_site(opened: OpenSite, view: SiteView, views: dict[str, SiteView]) -> list[tuple[OpenSite, SiteView, Link]]:
    known = views.setdefault(view.tag, view)
    if known.address.control_queue_url != view.address.control_queue_url:
        raise BadConfiguration(
            f"two sites have the tag {view.tag}: in {known.address.account}/{known.address.region}"
            f" and {view.address.account}/{view.address.region}"
        )
    return [(opened, view, link) for link in view.links]


def _find_peer_name(opened: OpenSite, view: SiteView, link: Link) -> SiteName | None:
    """Return the name of the site at the other end of a link; None if our credentials are for another account."""
    endpoint = link.endpoints[0]
    stage = parse_stage(endpoint.control_queue_url.rsplit("/", 1)[-1])
    return opened.name.find_peer(endpoint.region, endpoint.account, own_account=view.address.account, stage=stage)


def open_peer(opened: OpenSite, view: SiteView, link: Link) -> tuple[OpenSite, SiteView]:
    """Connect to the site at the other end of a link, and read it. Raises `BadConfiguration` or a connection error."""
    name = _find_peer_name(opened, view, link)
    if name is None:
        raise BadConfiguration(
            f"these credentials are not for account {link.endpoints[0].account}: name that site, too, as PROFILE@REGION"
        )
    peer = open_named(name)
    peer_view = peer.view()
    if peer_view.tag != link.peer:
        raise BadConfiguration(f"the site at {name} has the tag {peer_view.tag}")
    return peer, peer_view


def _build_map_site(view: SiteView, reached: Iterable[str]) -> MappedSite:
    """Build a site of the map. Links and bridges that a peer declared are left out if that peer is on the map."""
    links = [link for link in view.links if not (link.served and link.peer in reached)]
    names = {link.name for link in links}
    shown_names = {bridge.src: bridge.reads for bridge in view.bridges if bridge.src_is_queue and bridge.reads}
    return MappedSite(
        tag=view.tag,
        region=view.address.region,
        exchanges={exchange.name: exchange.type for exchange in view.exchanges},
        links=tuple(links),
        link_statuses={link.name: link.status for link in links},
        bridges=tuple(
            replace(bridge.to_bridge(), src=shown_names.get(bridge.src, bridge.src))
            for bridge in view.bridges
            if bridge.link in names
        ),
        route_states={bridge.name: bridge.state for bridge in view.bridges},
        feeding_bindings=tuple(feed.binding(queue=shown_names.get(feed.queue)) for feed in view.feeds),
    )
