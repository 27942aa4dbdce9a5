"""Combines the links and routes that all sites report into one topology. Pure.

The module `findings` finds lost and duplicated messages in a topology.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.federation.links.links import Bridge, Link, find_site_tags
from sluice.federation.links.states import CARRYING, LinkState, LinkStatus
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.metadata import Crossing

_OWN_STATE = CARRYING | {LinkState.PAUSED}  # the routes of links in these states have their own states


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSite:
    """The links, routes and exchanges that one site reports.

    `link_statuses` has statuses by link name. `route_states` has states by route name, as `route list` shows them.
    `feeding_bindings` are the site's bindings of queues that queue routes read.
    """

    tag: str
    region: str = ""
    exchanges: Mapping[str, ExchangeType] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    link_statuses: Mapping[str, LinkStatus] = field(default_factory=dict)
    bridges: tuple[Bridge, ...] = ()
    route_states: Mapping[str, str] = field(default_factory=dict)
    feeding_bindings: tuple[Binding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route between sites with the tags `source` and `dest`. `state` is a link's state, or `Failed: <why>`."""

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
        """Whether the route forwards no messages until an operator fixes the cause."""
        return self.state.startswith(LinkState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """All sites that were reached, by tag, and all routes, including those to sites that weren't reached."""

    sites: Mapping[str, MappedSite]
    routes: tuple[Route, ...]

    @classmethod
    def from_sites(cls, sites: Iterable[MappedSite]) -> "Topology":
        """Combine the reports of sites. The result is ordered by tag, so equal sites give equal drawings."""
        by_tag = {site.tag: site for site in sorted(sites, key=lambda site: site.tag)}
        routes: list[Route] = []
        for site in by_tag.values():
            links = {link.name: link for link in site.links}
            for bridge in site.bridges:
                if bridge.link not in links:
                    continue
                source, dest = find_site_tags(bridge, links[bridge.link], here=site.tag)
                # While a link forwards nothing, its state replaces the reported states of its routes.
                # A route that has failed or is paused is always drawn in its own state.
                link = site.link_statuses.get(bridge.link, LinkStatus()).state
                own = site.route_states.get(bridge.name, link.value)
                stays = own.startswith((LinkState.FAILED, LinkState.PAUSED))
                state = own if stays or link in _OWN_STATE else link.value
                if source != dest:  # a site can't be linked to itself, so such a report is wrong
                    routes.append(Route(source=source, dest=dest, bridge=bridge, state=state))
        routes.sort(key=lambda route: (route.source, route.dest, route.bridge.identity, route.bridge.name))
        return cls(sites=by_tag, routes=tuple(routes))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of all sites, including sites that only other sites' links name."""
        named = {link.peer for site in self.sites.values() for link in site.links}
        return tuple(sorted(named | self.sites.keys()))

    def find_exchange_type(self, tag: str, exchange: str) -> ExchangeType | None:
        """Return the type of a site's exchange; None if the site wasn't reached or doesn't report the exchange."""
        site = self.sites.get(tag)
        return None if site is None else site.exchanges.get(exchange)
