"""Draws a topology as text and as SVG: a box for each site, and a line for similar routes between two sites. Pure.

Equal topologies give equal drawings. The style of a line shows the kind of its routes.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from msgspec import UNSET

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState
from sluice.federation.map.findings import list_findings
from sluice.federation.map.topology import Route, Topology
from sluice.pictures.graph import draw_graph
from sluice.pictures.layout import Edge, Node
from sluice.pictures.svg import CELL_WIDTH, LINE_HEIGHT, Colour, Size, curve, document, shorten, text, text_width

MAX_LABELS = 4  # A line of the drawing has at most this many labels. Its title has all labels.
MAX_LABELLED = 200  # A drawing with more lines has no labels: they would be unreadable and slow to place.
MAX_CELLS = 28  # maximum characters in a line's label or a site's tag
_DASHES = {RouteKind.QUEUE: "", RouteKind.STATIC: "", RouteKind.DYNAMIC: "6 4"}
_WIDTHS = {RouteKind.QUEUE: 3.5, RouteKind.STATIC: 1.5, RouteKind.DYNAMIC: 1.5}
_COLOURS = {LinkState.OPERATIONAL: Colour.GOOD, LinkState.STALLED: Colour.SLOW, LinkState.FAILED: Colour.BAD}
_STATES = {
    Colour.GOOD: "operational",
    Colour.SLOW: "stalled",
    Colour.BAD: "failed",
    Colour.QUIET: "waiting, paused or closing",
}
_MARGIN = 16
_SAMPLE = 44  # length of the sample lines of the legend, in pixels
_BETWEEN = 24  # gap between the samples of the legend, in pixels
_WARNING_CELLS = 110
_ARROWS = {RouteKind.QUEUE: "══▶", RouteKind.STATIC: "──▶", RouteKind.DYNAMIC: "┄┄▶"}


def draw_text(topology: Topology) -> str:
    """Draw each site with its outgoing routes (`──▶` static, `┄┄▶` dynamic, `══▶` queue route), then all warnings."""
    lines = [line for tag in topology.tags for line in list_site_lines(topology, tag)]
    warnings = [f"! {warning}" for warning in list_findings(topology)]
    return "\n".join([*lines, *([""] if warnings else []), *warnings]) + "\n"


def format_route_keys(route: Route) -> str:
    """Return the key by which a route selects messages, and the new key if the route changes keys."""
    new_key = "" if route.bridge.dest_key is UNSET else f"as {route.bridge.dest_key}"
    return f"{route.bridge.key} {new_key}".strip()


def describe_route(route: Route) -> str:
    """Describe a route in one line: its ends, key, kind, name and state."""
    bridge = route.bridge
    ends = f"{route.source} {bridge.src} to {route.dest} {bridge.dest}"
    key = f", key {keys}" if (keys := format_route_keys(route)) else ""
    return f"{ends}{key}, {bridge.kind}, {bridge.name}, {route.state}"


def list_site_lines(topology: Topology, tag: str) -> Iterator[str]:
    """Yield a line for a site, then lines for the routes that leave the site, in columns."""
    site = topology.sites.get(tag)
    region = "" if site is None or site.region == tag else site.region
    yield f"{tag} (not reached)" if site is None else f"{tag} {region}".rstrip()
    rows: list[tuple[str, str, str, str]] = []
    for route in topology.routes:
        if route.source == tag:
            bridge = route.bridge
            key, arrow = f" {keys} " if (keys := format_route_keys(route)) else "", _ARROWS[bridge.kind]
            dest, rest = f"{route.dest} {bridge.dest}", f"{route.name}, {bridge.kind}, {route.state}"
            rows.append((bridge.src, f"{arrow[0]}{key}{arrow}", dest, rest))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1, 2)]
    for row in rows:
        source, arrow, dest, rest = (cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True))
        yield f"  {source} {arrow} {dest}  {rest}".rstrip()


def draw_svg(topology: Topology) -> str:
    """Draw the sites from left to right, the routes with their keys, a legend, and warnings.

    Long names are shortened. The title of each box or line has the full text.
    """
    edges = tuple(edge for edge, _ in build_route_edges(topology.routes))
    if len(edges) > MAX_LABELLED:
        edges = tuple(replace(edge, lines=()) for edge in edges)
    graph = draw_graph({tag: build_site_node(topology, tag) for tag in topology.tags}, edges)
    legend, legend_width = _draw_legend(topology.routes, top=graph.size.height + _MARGIN)
    cells = max(_WARNING_CELLS, int((graph.size.width - 2 * _MARGIN) / CELL_WIDTH))
    warnings = [
        line for finding in list_findings(topology) for line in wrap(f"⚠ {finding}", cells, subsequent_indent="  ")
    ]
    top = graph.size.height + (2 * LINE_HEIGHT + _MARGIN if edges else 0)
    written = (
        text((_MARGIN, top + LINE_HEIGHT * number), line, colour=Colour.BAD, anchor="start")
        for number, line in enumerate(warnings)
    )
    widths = [graph.size.width, legend_width, *(text_width(line) + 2 * _MARGIN for line in warnings)]
    size = Size(max(widths), top + LINE_HEIGHT * len(warnings))
    title = f"{len(topology.tags)} sites, {len(topology.routes)} routes"
    return document(size, [*graph.parts, *legend, *written], title=title)


def build_site_node(topology: Topology, tag: str) -> Node:
    """Return the box of a site. The box is dashed if the site wasn't reached."""
    site = topology.sites.get(tag)
    beside = "not reached" if site is None else site.region
    says = shorten(tag, MAX_CELLS), *([beside] if beside not in {"", tag} else [])
    return Node(lines=says, title=tag, dashed=site is None)


def build_route_edges(routes: Sequence[Route]) -> Iterator[tuple[Edge, Sequence[Route]]]:
    """Yield each line of the drawing with its routes: the routes of one kind and state between two sites.

    If the routes of both directions have equal keys, their line has arrows at both ends.
    """
    similar_routes: defaultdict[tuple[str, str, RouteKind, Colour], list[Route]] = defaultdict(list)
    for route in routes:
        similar_routes[route.source, route.dest, route.bridge.kind, choose_state_colour(route)].append(route)
    labels = {key: tuple(dict.fromkeys(map(label_route, group))) for key, group in similar_routes.items()}
    for key, group in similar_routes.items():
        source, dest, kind, colour = key
        back = dest, source, kind, colour
        both_ways = labels.get(back) == labels[key]
        if both_ways and source > dest:
            continue  # the opposite direction's line shows these routes
        more = len(labels[key]) - MAX_LABELS
        drawn_routes = [*group, *(similar_routes[back] if both_ways else ())]
        edge = Edge(
            source=source,
            dest=dest,
            lines=(*labels[key][:MAX_LABELS], *([f"and {more} more"] if more > 0 else [])),
            title="\n".join(map(describe_route, drawn_routes)),
            colour=colour,
            width=_WIDTHS[kind],
            dash=_DASHES[kind],
            both_ways=both_ways,
        )
        yield edge, drawn_routes


def choose_state_colour(route: Route) -> Colour:
    """Return the colour of a line for a route in this state."""
    if route.is_failed:
        return Colour.BAD
    return _COLOURS.get(LinkState(route.state), Colour.QUIET)


def label_route(route: Route) -> str:
    """Return the label of a route: its source and key, and its state unless the route is operational.

    The state is included because colours may be unclear.
    """
    taken = f"{route.bridge.src} {format_route_keys(route)}".rstrip()
    state, label = route.state.partition(":")[0], shorten(taken, MAX_CELLS)
    return label if state == LinkState.OPERATIONAL else f"{label} ({state.lower()})"


def _draw_legend(routes: Sequence[Route], *, top: float) -> tuple[list[str], float]:
    """Draw a row with a sample of each kind and state of route in the drawing. Returns the row and its width."""
    kinds, colours = {route.bridge.kind for route in routes}, set(map(choose_state_colour, routes))
    samples = [
        *((kind, Colour.QUIET, f"{kind} route") for kind in RouteKind if kind in kinds),
        *((RouteKind.STATIC, colour, said) for colour, said in _STATES.items() if colour in colours),
    ]
    drawing_parts: list[str] = []
    x = float(_MARGIN)
    for kind, colour, said in samples:
        end = x + _SAMPLE
        sample = curve([(x, top), (x, top), (end, top), (end, top)], width=_WIDTHS[kind], dash=_DASHES[kind])
        said_beside = text((end + 6, top + 4), said, colour=Colour.QUIET, anchor="start")
        drawing_parts.append(f'<g class="{colour}">{sample}</g>{said_beside}')
        x = end + text_width(said) + _BETWEEN
    return drawing_parts, x
