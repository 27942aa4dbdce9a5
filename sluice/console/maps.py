"""Lays out a map of a federation's sites and routes for a page.

Other sites are read with the caller's own credentials, as by `sluice route map`. Responses are cached for ten seconds,
and longer if no AWS calls are left in the current second's budget.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sluice.codec import encode
from sluice.console.sites import CallLimitedSite, Document
from sluice.errors import SluiceError
from sluice.federation.links.registry import format_served_name
from sluice.federation.map.drawings import MAX_LABELLED, build_route_edges, build_site_node
from sluice.federation.map.findings import list_findings
from sluice.federation.map.topology import Route
from sluice.federation.operations import ShowSite, SiteView
from sluice.operations import Operation, R
from sluice.operator.federated_sites import DiscoveredSites, OpenSite, discover_from, use_clients
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.operator.site_names import SiteName
from sluice.pictures.layout import lay_out
from sluice.pictures.svg import Point, Size

PEER_INTERVAL_S = 10.0
LONGEST_RATE = "00,000 a minute"  # This text reserves space in a line's label for a rate of messages.
MAX_LAYOUTS = 4  # A site's cache has the wide and the narrow layout, each before and after a change.
_LAYOUT_LOCK = threading.Lock()  # The layout engine is not thread-safe.


class NotReadYet(SluiceError):
    """Raised if a site has not been read yet because the budget of AWS calls was spent."""


@dataclass(slots=True)
class PeerCache:
    """Clients of other sites by site name, and layouts of the map, which are reused when the map is drawn again."""

    clients: dict[str, ControlClient] = field(default_factory=dict)
    layouts: dict[object, Document] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CachingClient:
    """A client of a site's links function that caches responses for ten seconds, for the map."""

    site: CallLimitedSite
    name: SiteName

    def ask(self, operation: Operation[R], /) -> R:
        """Return the operation's cached response, or invoke it. Raises `NotReadYet` and the client's errors."""
        result: Any
        if isinstance(operation, ShowSite) and self._is_own:
            result = read_site_view(self.site)
        else:
            result = self._ask_cached(operation)
        if result is None:
            raise NotReadYet("not read yet: the console reads this site in a few seconds")
        answer: R = result
        return answer

    def ask_uncached(self, operation: Operation[R]) -> R:
        """Invoke the operation even if no AWS calls are left in the budget. Raises the client's errors."""
        if self._is_own:
            return self.site.find_client(FEDERATION).ask(operation)
        clients, name = get_peer_cache(self.site).clients, str(self.name)
        if name not in clients:
            clients[name] = ControlClient.connect(self.site.connect(self.name), FEDERATION)
        try:
            return clients[name].ask(operation)
        except SluiceError:
            clients.pop(name, None)  # The site may have been redeployed, with another function.
            raise

    @property
    def _is_own(self) -> bool:
        return self.name == self.site.name

    def _ask_cached(self, operation: Operation[R]) -> R | None:
        known = str(self.name) in get_peer_cache(self.site).clients
        calls = 0 if self._is_own else 1 if known else 2  # `CallLimitedSite` itself counts calls to its site.
        key = "map", str(self.name), encode(operation)
        return self.site.read_cached(key, partial(self.ask_uncached, operation), every_s=PEER_INTERVAL_S, calls=calls)


def get_peer_cache(site: CallLimitedSite) -> PeerCache:
    """Return the cache of other sites that belongs to the site's map."""
    return site.memory.get_state("map", PeerCache)


def read_site_view(site: CallLimitedSite) -> SiteView:
    """Read the state of the site's federation, at most once a second. Raises `NotUsable`, `CallFailed`."""
    return site.run_once("federation", lambda: site.find_client(FEDERATION).ask(ShowSite())).result()


def discover_peers(site: CallLimitedSite) -> DiscoveredSites:
    """Read the site and all linked sites, as far as the budget of AWS calls allows."""
    with use_clients(partial(CachingClient, site)):
        return discover_from([OpenSite(site.name, CachingClient(site, site.name))], with_paths=False)


def draw_map(site: CallLimitedSite, sites: DiscoveredSites, *, downwards: bool) -> Document:
    """Lay out the map from left to right or downwards, with space for a message rate on each line. Caches layouts."""
    topology = sites.topology
    nodes = {tag: build_site_node(topology, tag) for tag in topology.tags}
    edges = list(build_route_edges(topology.routes))
    if len(edges) > MAX_LABELLED:
        edges = [(replace(edge, lines=()), routes) for edge, routes in edges]
    sized_edges = tuple(replace(edge, lines=(*edge.lines, LONGEST_RATE)) if edge.lines else edge for edge, _ in edges)
    layouts = get_peer_cache(site).layouts
    key = tuple(nodes.items()), sized_edges, downwards
    if key not in layouts:
        while len(layouts) >= MAX_LAYOUTS:
            layouts.pop(next(iter(layouts)))
        with _LAYOUT_LOCK:
            layout = lay_out(nodes, sized_edges, downwards=downwards)
        layouts[key] = {
            "width": layout.size.width,
            "height": layout.size.height,
            "nodes": [
                {"tag": tag, "says": list(node.lines), **_place_box(layout.boxes[tag], node.size)}
                for tag, node in nodes.items()
            ],
            "lines": [
                {
                    "points": line.points,
                    "heads": line.heads,
                    "label": None if line.label is None or edge.label is None else _place_box(line.label, edge.label),
                }
                for line, edge in zip(layout.lines, sized_edges, strict=True)
            ],
        }
    placed = layouts[key]
    lines = zip(placed["lines"], edges, strict=True)
    return {
        "width": placed["width"],
        "height": placed["height"],
        "nodes": [
            {**node, "reached": node["tag"] in topology.sites, "here": node["tag"] == read_site_view(site).tag}
            for node in placed["nodes"]
        ],
        "edges": [
            {
                **line,
                "source": edge.source,
                "dest": edge.dest,
                "kind": routes[0].bridge.kind.value,
                "state": edge.colour.value,
                "says": list(edge.lines),
                "title": edge.title,
                "both_ways": edge.both_ways,
                "routes": [build_route_document(route) for route in routes],
            }
            for line, (edge, routes) in lines
        ],
    }


def _place_box(centre: Point, size: Size) -> Document:
    return {"x": centre[0], "y": centre[1], "width": size.width, "height": size.height}


def build_route_document(route: Route) -> Document:
    """Format a route for the map. It is called `name` at the site `declared_at`, and `served` at the other site."""
    bridge = route.bridge
    declared_at = route.source if bridge.src_is_local else route.dest
    return {
        "name": bridge.name,
        "link": bridge.link,
        "source": route.source,
        "dest": route.dest,
        "declared_at": declared_at,
        "served": format_served_name(bridge.name, declared_at),
        "src": bridge.src,
        "to": bridge.dest,
        "key": bridge.key,
        "kind": bridge.kind.value,
        "state": route.state,
    }


def list_warnings(sites: DiscoveredSites) -> Sequence[Document]:
    """List warnings about routes that lose or duplicate messages."""
    return [
        {
            "concern": finding.concern.value,
            "effect": finding.effect.value,
            "text": finding.text,
            "sites": list(finding.sites),
        }
        for finding in list_findings(sites.topology)
    ]
