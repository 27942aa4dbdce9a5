"""Combines the links and routes that all sites report into one topology. Pure.

Module `findings` finds lost and duplicated messages in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.federation.links.links import Bridge, Link, find_site_tags
from sluice.federation.links.states import CARRYING, LinkState, LinkStatus
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import Crossing

_OWN_STATE = CARRYING | {LinkState.PAUSED}  # states of a link whose routes have their own states


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSite:
    """The links, routes and exchanges that one site reports.

    `statuses` are by link. `states` are by bridge, as `route list` shows them. `feeds` are the site's bindings of
    queues that queue routes read.
    """

    tag: str
    region: str = ""
    exchanges: Mapping[str, ExchangeType] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    statuses: Mapping[str, LinkStatus] = field(default_factory=dict)
    bridges: tuple[Bridge, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    feeds: tuple[Binding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route from the site `source` to the site `dest`, both tags. `state` is a link's, or `Failed: <why>`."""

    source: str
    dest: str
    bridge: Bridge
    state: str

    @property
    def name(self) -> str:
        """The names of the route's link and bridge."""
        return f"{self.bridge.link}/{self.bridge.name}"

    @property
    def crossing(self) -> Crossing:
        """The route's rules for messages' traces."""
        bridge = self.bridge
        tag = bridge.tag or self.source
        return Crossing(peer=self.dest, tag=tag, excludes=bridge.excludes, max_hops=bridge.max_hops)

    @property
    def is_failed(self) -> bool:
        """Whether the route forwards nothing until an operator fixes the cause."""
        return self.state.startswith(LinkState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All sites that were reached, by tag, and their routes, including routes to sites that weren't reached."""

    sites: Mapping[str, MappedSite]
    routes: tuple[Route, ...]

    @classmethod
    def from_sites(cls, sites: Iterable[MappedSite]) -> "Topology":
        """Combine the sites' reports, ordered by tag, so that equal sites give equal drawings."""
        by_tag = {site.tag: site for site in sorted(sites, key=lambda site: site.tag)}
        routes: list[Route] = []
        for site in by_tag.values():
            links = {link.name: link for link in site.links}
            for bridge in site.bridges:
                if bridge.link not in links:
                    continue
                source, dest = find_site_tags(bridge, links[bridge.link], here=site.tag)
                # A route's reported state is outdated while its link carries nothing, so the link's state is used.
                # Failed and paused routes keep their own state.
                link = site.statuses.get(bridge.link, LinkStatus()).state
                own = site.states.get(bridge.name, link.value)
                stays = own.startswith((LinkState.FAILED, LinkState.PAUSED))
                state = own if stays or link in _OWN_STATE else link.value
                if source != dest:  # sites can't be linked to themselves, so the report is wrong
                    routes.append(Route(source=source, dest=dest, bridge=bridge, state=state))
        routes.sort(key=lambda route: (route.source, route.dest, route.bridge.identity, route.bridge.name))
        return cls(sites=by_tag, routes=tuple(routes))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of all sites, including sites that are only named by links."""
        named = {link.peer for site in self.sites.values() for link in site.links}
        return tuple(sorted(named | self.sites.keys()))

    def exchange_type(self, tag: str, exchange: str) -> ExchangeType | None:
        """Return the type of a site's exchange; None if the site wasn't reached or doesn't report the exchange."""
        site = self.sites.get(tag)
        return None if site is None else site.exchanges.get(exchange)
