"""A topology drawn: as text, and as SVG. Pure: equal topologies give equal drawings."""

import math
from collections.abc import Iterable, Iterator
from html import escape

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState
from sluice.federation.map.topology import Route, Topology
from sluice.message import NOT_TEXT

_ARROWS = {RouteKind.QUEUE: "══▶", RouteKind.STATIC: "──▶", RouteKind.DYNAMIC: "┄┄▶"}
_DASHES = {RouteKind.QUEUE: "", RouteKind.STATIC: "", RouteKind.DYNAMIC: "6 4"}
_WIDTHS = {RouteKind.QUEUE: 3, RouteKind.STATIC: 1.5, RouteKind.DYNAMIC: 1.5}

_MARGIN = 110
_RADIUS_MIN = 140
_RADIUS_PER_SITE = 32
_NODE_RADIUS = 30
_BEND = 18  # px a route bows out by: so a pair of opposite ones stand side by side
_LINE_HEIGHT = 18
_CHARACTER_WIDTH = 7  # of a warning's, at most, on average
_TEXT_MARGIN = 12
_COLOURS = {LinkState.OPERATIONAL: "#2a7d3f", LinkState.STALLED: "#b07c10", LinkState.FAILED: "#b3261e"}
_GREY = "#6b7280"


_Point = tuple[float, float]


def as_text(topology: Topology) -> str:
    """Each site with the routes that leave it, then the warnings. `──▶` static, `┄┄▶` dynamic, `══▶` queue route."""
    lines = [line for tag in topology.tags for line in _site_lines(topology, tag)]
    warnings = [f"! {warning}" for warning in topology.findings()]
    return "\n".join([*lines, *([""] if warnings else []), *warnings]) + "\n"


def _site_lines(topology: Topology, tag: str) -> Iterator[str]:
    site = topology.sites.get(tag)
    yield f"{tag} (not reached)" if site is None else f"{tag} {site.region}".rstrip()
    rows = [_row(route) for route in topology.routes if route.source == tag]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1, 2)]
    for row in rows:
        source, arrow, dest, rest = (cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True))
        yield f"  {source} {arrow} {dest}  {rest}".rstrip()


def _row(route: Route) -> tuple[str, str, str, str]:
    bridge = route.bridge
    key = f" {bridge.key} " if bridge.key else ""
    arrow = _ARROWS[bridge.kind]
    state = "paused" if bridge.paused else str(route.state)
    return bridge.src, f"{arrow[0]}{key}{arrow}", f"{route.dest} {bridge.dest}", f"{bridge.link}/{bridge.name}, {state}"


def as_svg(topology: Topology) -> str:
    """The sites on a circle, an arrow for each route, the warnings below. Stands alone: no script, no style sheet."""
    places = _places(topology.tags)
    centre = _centre(len(places))
    warnings = [str(warning) for warning in topology.findings()]
    size = round(2 * centre)
    height = size + _LINE_HEIGHT * (len(warnings) + 1)
    width = max([size, *(2 * _TEXT_MARGIN + _CHARACTER_WIDTH * len(text) for text in warnings)])
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#374151"/></marker></defs>',
            *_drawn_routes(topology, places),
            *(_drawn_site(topology, tag, place) for tag, place in places.items()),
            *(_drawn_warning(text, size + _LINE_HEIGHT * line) for line, text in enumerate(warnings)),
            "</svg>\n",
        ]
    )


def _places(tags: Iterable[str]) -> dict[str, _Point]:
    line = list(tags)
    centre = _centre(len(line))
    radius = centre - _MARGIN
    angles = [2 * math.pi * number / max(len(line), 1) - math.pi / 2 for number in range(len(line))]
    return {
        tag: (centre + radius * math.cos(angle), centre + radius * math.sin(angle))
        for tag, angle in zip(line, angles, strict=True)
    }


def _centre(sites: int) -> float:
    return _MARGIN + max(_RADIUS_MIN, _RADIUS_PER_SITE * sites)


def _drawn_routes(topology: Topology, places: dict[str, _Point]) -> Iterator[str]:
    """Routes between the same two sites bow out further each."""
    drawn: dict[tuple[str, str], int] = {}
    for route in topology.routes:
        ends = route.source, route.dest
        drawn[ends] = drawn.get(ends, 0) + 1
        yield _drawn_route(route, places[route.source], places[route.dest], _BEND * drawn[ends])


def _drawn_route(route: Route, start: _Point, end: _Point, bend: float) -> str:
    bridge = route.bridge
    along, aside = _directions(start, end)
    first, last = _moved(start, along, _NODE_RADIUS), _moved(end, along, -_NODE_RADIUS)
    middle = (first[0] + last[0]) / 2, (first[1] + last[1]) / 2
    control, label = _moved(middle, aside, 2 * bend), _moved(middle, aside, bend + 4)
    colour = _GREY if bridge.paused else _COLOURS.get(route.state, _GREY)
    dash = f' stroke-dasharray="{_DASHES[bridge.kind]}"' if _DASHES[bridge.kind] else ""
    title = f"{route.source} {bridge.src} to {route.dest} {bridge.dest}, {bridge.kind}, {bridge.name}, {route.state}"
    return (
        f"<g><title>{_escaped(title)}</title>"
        f'<path d="M{_at(first)} Q{_at(control)} {_at(last)}" fill="none" stroke="{colour}"'
        f' stroke-width="{_WIDTHS[bridge.kind]}"{dash} marker-end="url(#head)"/>'
        f'<text x="{label[0]:.1f}" y="{label[1]:.1f}" text-anchor="middle" font-size="10" fill="#374151">'
        f"{_escaped(_label(route))}</text></g>"
    )


def _label(route: Route) -> str:
    bridge = route.bridge
    return f"{bridge.src} {bridge.key}".rstrip()


def _directions(start: _Point, end: _Point) -> tuple[_Point, _Point]:
    """One pixel along the line, and one to its left."""
    across, down = end[0] - start[0], end[1] - start[1]
    length = math.hypot(across, down) or 1.0
    along = across / length, down / length
    return along, (along[1], -along[0])


def _moved(point: _Point, direction: _Point, by: float) -> _Point:
    return point[0] + direction[0] * by, point[1] + direction[1] * by


def _at(point: _Point) -> str:
    return f"{point[0]:.1f},{point[1]:.1f}"


def _drawn_site(topology: Topology, tag: str, place: _Point) -> str:
    site = topology.sites.get(tag)
    dash = ' stroke-dasharray="3 3"' if site is None else ""
    region = "not reached" if site is None else site.region
    x, y = place
    return (
        f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE_RADIUS}" fill="#eef2ff" stroke="#4338ca"{dash}/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" font-weight="bold">{_escaped(tag)}</text>'
        f'<text x="{x:.1f}" y="{y + _NODE_RADIUS + 13:.1f}" text-anchor="middle" font-size="10" fill="{_GREY}">'
        f"{_escaped(region)}</text></g>"
    )


def _drawn_warning(text: str, y: int) -> str:
    return f'<text x="{_TEXT_MARGIN}" y="{y}" fill="#b3261e">⚠ {_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Keys and errors may hold what no XML can."""
    return escape(NOT_TEXT.sub("\ufffd", text))
