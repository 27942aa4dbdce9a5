"""The federation's map as a page draws it: all sites that links lead to, laid out, and where a message goes on it.

Peers are asked with the caller's own credentials, as `sluice route map` asks them, but seldom: each answer is good for
some seconds, and a round that has no calls left draws what is known.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import typer

from sluice.codec import encode
from sluice.console.requests import text_in
from sluice.console.sites import Document, KnownSite
from sluice.errors import BadRequest, SluiceError
from sluice.federation.links.registry import served_name
from sluice.federation.map.destinations import Arrival, AskedExchanges, Passage, Stage, destinations
from sluice.federation.map.findings import findings
from sluice.federation.map.svg import MAX_LABELLED, edges_of, node_of
from sluice.federation.map.topology import Route
from sluice.federation.matching.typed_values import Headers
from sluice.federation.operations import ListBindings, ListWays, ShowSite, SiteView, WaysView
from sluice.operations import Operation, R
from sluice.operator.federated_sites import OpenSite, Walked, asked_by, walk_from
from sluice.operator.functions import FEDERATION, ControlClient
from sluice.operator.messages import typed_values
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import begin
from sluice.pictures.layout import Edge, Node, laid_out
from sluice.pictures.svg import Point, Size

PEER_EVERY_S = 10.0
RATE = "00,000 a minute"  # the room that an edge's label has for it
KEPT_LAYOUTS = 4  # of a site: wide and narrow, before and after a change
_LAYING_OUT = threading.Lock()  # only one thread at a time may


class NotAskedYet(SluiceError):
    """A site whose turn hasn't come."""


@dataclass(slots=True)
class KnownPeers:
    """What a map knows of sites from round to round, by the names and tags that they have."""

    clients: dict[str, ControlClient] = field(default_factory=dict)
    views: dict[str, SiteView] = field(default_factory=dict)
    names: dict[str, SiteName] = field(default_factory=dict)
    layouts: dict[object, Document] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeldomAsked:
    """A site's links function, as a map asks it: what it said some seconds ago is good enough."""

    asker: KnownSite
    name: SiteName

    def ask(self, operation: Operation[R], /) -> R:
        """Ask, or give what was said lately. Raises `NotAskedYet`, and what asking raises."""
        found: Any
        if isinstance(operation, ShowSite) and self._is_own:
            found = view_of(self.asker)
        elif isinstance(operation, ListWays):
            found = WaysView(ways=())
            with suppress(SluiceError):  # without them the map lacks how dynamic routes go, and nothing else
                found = self._kept(operation) or found
        else:
            found = self._kept(operation)
        if found is None:
            raise NotAskedYet("it hasn't been asked yet")
        if isinstance(found, SiteView):
            peers = peers_of(self.asker)
            peers.views[found.tag], peers.names[found.tag] = found, self.name
        answer: R = found
        return answer

    def at_once(self, operation: Operation[R]) -> R:
        """Ask whatever the round has left. Raises what asking raises."""
        if self._is_own:
            return self.asker.client(FEDERATION).ask(operation)
        clients, name = peers_of(self.asker).clients, str(self.name)
        if name not in clients:
            clients[name] = ControlClient.of(self.asker.reach(self.name), FEDERATION)
        try:
            return clients[name].ask(operation)
        except SluiceError:
            clients.pop(name, None)  # the site may have been made anew
            raise

    @property
    def _is_own(self) -> bool:
        return self.name == self.asker.name

    def _kept(self, operation: Operation[R]) -> R | None:
        known = str(self.name) in peers_of(self.asker).clients
        calls = 0 if self._is_own else 1 if known else 2  # of its own client the asker counts the call itself
        key = "map", str(self.name), encode(operation)
        return self.asker.kept(key, partial(self.at_once, operation), every_s=PEER_EVERY_S, calls=calls)


def peers_of(site: KnownSite) -> KnownPeers:
    """Give what is kept for the site's map."""
    return site.memory.of("map", KnownPeers)


def view_of(site: KnownSite) -> SiteView:
    """Ask for the site, once a round. Raises `NotUsable`, `CallFailed`."""
    found: SiteView = site.once("federation", lambda: site.client(FEDERATION).ask(ShowSite())).result()
    return found


def walked_from(site: KnownSite) -> Walked:
    """Ask the site and all that links lead to, as far as the round's calls go."""
    with asked_by(partial(SeldomAsked, site)):
        return walk_from([OpenSite(site.name, SeldomAsked(site, site.name))])


# The drawing


def drawn(site: KnownSite, walked: Walked, *, downwards: bool) -> Document:
    """Lay the map out, from left to right or downwards, with room for a rate at each line.

    What is laid out is kept, as it changes seldom.
    """
    topology = walked.topology
    nodes = {tag: node_of(topology, tag) for tag in topology.tags}
    edges = list(edges_of(topology.routes))
    if len(edges) > MAX_LABELLED:
        edges = [(replace(edge, says=()), routes) for edge, routes in edges]
    roomy = tuple(replace(edge, says=(*edge.says, RATE)) if edge.says else edge for edge, _ in edges)
    layouts = peers_of(site).layouts
    key = tuple(nodes.items()), roomy, downwards
    if key not in layouts:
        while len(layouts) >= KEPT_LAYOUTS:
            layouts.pop(next(iter(layouts)))
        layouts[key] = _placed(nodes, roomy, downwards=downwards)
    placed = layouts[key]
    told = zip(placed["lines"], edges, strict=True)
    return {
        "width": placed["width"],
        "height": placed["height"],
        "nodes": [
            {**each, "reached": each["tag"] in topology.sites, "here": each["tag"] == view_of(site).tag}
            for each in placed["nodes"]
        ],
        "edges": [{**line, **_told(edge, routes)} for line, (edge, routes) in told],
    }


def _placed(nodes: Mapping[str, Node], edges: Sequence[Edge], *, downwards: bool) -> Document:
    with _LAYING_OUT:
        layout = laid_out(nodes, edges, downwards=downwards)
    return {
        "width": layout.size.width,
        "height": layout.size.height,
        "nodes": [
            {"tag": tag, "says": list(node.says), **_box(layout.boxes[tag], node.size)} for tag, node in nodes.items()
        ],
        "lines": [
            {
                "points": line.points,
                "heads": line.heads,
                "label": None if line.label is None or edge.label is None else _box(line.label, edge.label),
            }
            for line, edge in zip(layout.lines, edges, strict=True)
        ],
    }


def _box(centre: Point, size: Size) -> Document:
    return {"x": centre[0], "y": centre[1], "width": size.width, "height": size.height}


def _told(edge: Edge, routes: Sequence[Route]) -> Document:
    return {
        "source": edge.source,
        "dest": edge.dest,
        "kind": routes[0].bridge.kind.value,
        "state": edge.colour.value,
        "says": list(edge.says),
        "title": edge.title,
        "both_ways": edge.both_ways,
        "routes": [route_of(each) for each in routes],
    }


def route_of(route: Route) -> Document:
    """Say a route as the map has it: `declared_at` is the site that knows it by its name, its peer by `served`."""
    bridge = route.bridge
    declared_at = route.source if bridge.src_is_local else route.dest
    return {
        "name": bridge.name,
        "link": bridge.link,
        "source": route.source,
        "dest": route.dest,
        "declared_at": declared_at,
        "served": served_name(bridge.name, declared_at),
        "src": bridge.src,
        "to": bridge.dest,
        "key": bridge.key,
        "kind": bridge.kind.value,
        "state": route.state,
    }


def warnings_of(walked: Walked) -> Sequence[Document]:
    """Say what of the map loses or doubles messages."""
    return [
        {"concern": each.concern.value, "effect": each.effect.value, "text": each.text, "sites": list(each.sites)}
        for each in findings(walked.topology)
    ]


# Where a message goes


def trace(site: KnownSite, fields: Mapping[str, Any]) -> Document:
    """Say where a message would go from an exchange of the site, with this key and these headers.

    Raises `BadRequest`, and what asking the site raises.
    """
    walked = walked_from(site)
    view = view_of(site)
    exchange = text_in(fields, "exchange")
    if exchange not in {each.name for each in view.exchanges}:
        raise BadRequest(f"exchange: there is no {exchange!r} at {view.tag}")
    asked, unknown = _all_asked(site, walked)
    start = Arrival(site=view.tag, exchange=exchange, key=text_in(fields, "key", default=""))
    found = destinations(walked.topology, asked, start, headers_in(fields, "headers"))
    return {
        "stages": [_stage(each) for each in found],
        "unknown": [*({"site": tag, "why": why} for tag, why in sorted({**unknown, **walked.not_reached}.items()))],
    }


def headers_in(fields: Mapping[str, Any], name: str) -> Headers:
    """Read headers as `sluice publish --header` takes them, a line each. Raises `BadRequest`."""
    try:
        return typed_values(filter(None, text_in(fields, name, default="").splitlines()), option=f"{name}:")
    except typer.BadParameter as error:
        raise BadRequest(error.message) from error


def _all_asked(site: KnownSite, walked: Walked) -> tuple[dict[str, AskedExchanges], dict[str, str]]:
    """Ask all sites of the map for their bindings, at once; those that can't be asked with the reason."""
    peers, asked, unknown = peers_of(site), dict[str, AskedExchanges](), dict[str, str]()
    begun = {
        tag: begin(partial(SeldomAsked(site, peers.names[tag]).at_once, ListBindings()))
        for tag in walked.topology.sites
        if tag in peers.names
    }
    for tag, answer in begun.items():
        try:
            bindings = answer.result().bindings
        except SluiceError as error:
            unknown[tag] = str(error)
            continue
        view = peers.views[tag]
        # What is bound for a route is told as the route.
        of_routes = {each.reads for each in view.bridges if not each.src_is_queue}
        asked[tag] = AskedExchanges(
            exchanges={each.name: each for each in view.exchanges},
            bindings=[each.binding() for each in bindings if each.queue not in of_routes],
            ways=walked.ways.get(tag, ()),
        )
    return asked, unknown


def _stage(stage: Stage) -> Document:
    return {
        "site": stage.at.site,
        "exchange": stage.exchange,
        "key": stage.at.key,
        "queues": list(stage.queues),
        "passages": [_passage(each) for each in stage.passages],
        "over": [route_of(each) for each in stage.over],
    }


def _passage(passage: Passage) -> Document:
    return {
        **route_of(passage.route),
        "held": passage.held,
        "waits": passage.waits,
        "sure": passage.is_sure,
    }
