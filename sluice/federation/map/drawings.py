"""A topology drawn: as text, and as SVG. Pure: equal topologies give equal drawings.

Kinds of routes are told apart by their lines, here and in `languages`.
"""

import cmath
import math
from collections import Counter
from collections.abc import Iterator
from html import escape

from msgspec import UNSET

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState
from sluice.federation.map.findings import findings
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
_LEGEND_LINE = 46  # px
_GREY, RED = "#6b7280", "#b3261e"
_COLOURS = {LinkState.OPERATIONAL: "#2a7d3f", LinkState.STALLED: "#b07c10", LinkState.FAILED: RED}


def as_text(topology: Topology) -> str:
    """Write each site with the routes that leave it, then warnings. `──▶` static, `┄┄▶` dynamic, `══▶` queue route."""
    lines = [line for tag in topology.tags for line in _site_lines(topology, tag)]
    warnings = [f"! {warning}" for warning in findings(topology)]
    return "\n".join([*lines, *([""] if warnings else []), *warnings]) + "\n"


def label_of(route: Route) -> str:
    """Say what a route takes: the exchange, or queue, and the key."""
    return f"{route.bridge.src} {_keys_of(route)}".rstrip()


def _keys_of(route: Route) -> str:
    given = "" if route.bridge.dest_key is UNSET else f"as {route.bridge.dest_key}"
    return f"{route.bridge.key} {given}".strip()


def state_of(route: Route) -> str:
    """Say how a route is, in words."""
    return "paused" if route.bridge.paused and not route.is_failed else route.state


def title_of(route: Route) -> str:
    """Say all of a route in one line."""
    bridge = route.bridge
    ends = f"{route.source} {bridge.src} to {route.dest} {bridge.dest}"
    return f"{ends}, {bridge.kind}, {bridge.name}, {state_of(route)}"


def colour_of(route: Route) -> str:
    """Return the colour of the route's state."""
    if route.is_failed:
        return RED
    return _GREY if route.bridge.paused else _COLOURS.get(LinkState(route.state), _GREY)


def _site_lines(topology: Topology, tag: str) -> Iterator[str]:
    site = topology.sites.get(tag)
    yield f"{tag} (not reached)" if site is None else f"{tag} {site.region}".rstrip()
    rows: list[tuple[str, str, str, str]] = []
    for route in topology.routes:
        if route.source == tag:
            bridge = route.bridge
            key, arrow = f" {keys} " if (keys := _keys_of(route)) else "", _ARROWS[bridge.kind]
            dest, rest = f"{route.dest} {bridge.dest}", f"{route.name}, {bridge.kind}, {state_of(route)}"
            rows.append((bridge.src, f"{arrow[0]}{key}{arrow}", dest, rest))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1, 2)]
    for row in rows:
        source, arrow, dest, rest = (cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True))
        yield f"  {source} {arrow} {dest}  {rest}".rstrip()


def as_svg(topology: Topology) -> str:
    """Draw the sites on a circle, an arrow a route, warnings below. It stands alone: no script or style sheet."""
    tags = topology.tags
    radius = max(_RADIUS_MIN, _RADIUS_PER_SITE * len(tags))
    centre = complex(_MARGIN + radius, _MARGIN + radius)
    places = {
        tag: centre + cmath.rect(radius, 2 * math.pi * number / len(tags) - math.pi / 2)
        for number, tag in enumerate(tags)
    }
    between: Counter[tuple[str, str]] = Counter()
    routes: list[str] = []
    for route in topology.routes:  # those between the same two sites bow out further each
        between[route.source, route.dest] += 1
        bend = _BEND * between[route.source, route.dest]
        routes.append(_drawn_route(route, places[route.source], places[route.dest], bend))
    warnings = [str(warning) for warning in findings(topology)]
    kinds = [kind for kind in RouteKind if any(route.bridge.kind is kind for route in topology.routes)]
    size = 2 * (_MARGIN + radius)
    height = size + _LINE_HEIGHT * (len(kinds) + len(warnings) + 1)
    width = max([size, *(2 * _TEXT_MARGIN + _CHARACTER_WIDTH * len(text) for text in warnings)])
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
                f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
            ),
            '<rect width="100%" height="100%" fill="white"/>',
            (
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
                ' markerUnits="userSpaceOnUse" orient="auto">'
                '<path d="M0,0 L8,4 L0,8 z" fill="#374151"/></marker></defs>'
            ),
            *routes,
            *(_drawn_site(topology, tag, place) for tag, place in places.items()),
            *(_drawn_kind(kind, size + _LINE_HEIGHT * line) for line, kind in enumerate(kinds)),
            *(
                f'<text x="{_TEXT_MARGIN}" y="{size + _LINE_HEIGHT * line}" fill="{RED}">⚠ {_escaped(text)}</text>'
                for line, text in enumerate(warnings, start=len(kinds))
            ),
            "</svg>\n",
        ]
    )


def _drawn_route(route: Route, start: complex, end: complex, bend: float) -> str:
    bridge = route.bridge
    along = (end - start) / (abs(end - start) or 1.0)
    aside = along * -1j  # to the left, as y grows downwards
    first, last = start + along * _NODE_RADIUS, end - along * _NODE_RADIUS
    middle = (first + last) / 2
    control, label = middle + aside * 2 * bend, middle + aside * (bend + 4)
    colour = colour_of(route)
    return (
        f"<g><title>{_escaped(title_of(route))}</title>"
        f'<path d="M{_at(first)} Q{_at(control)} {_at(last)}" fill="none" stroke="{colour}"'
        f"{_line_of(bridge.kind)}"
        ' marker-end="url(#head)"/>'
        f'<text x="{label.real:.1f}" y="{label.imag:.1f}" text-anchor="middle" font-size="10" fill="#374151">'
        f"{_escaped(label_of(route))}</text></g>"
    )


def _line_of(kind: RouteKind) -> str:
    """Give the attributes of a line of this kind."""
    dash = f' stroke-dasharray="{_DASHES[kind]}"' if _DASHES[kind] else ""
    return f' stroke-width="{_WIDTHS[kind]}"{dash}'


def _drawn_kind(kind: RouteKind, y: float) -> str:
    """Draw a line of the legend."""
    end, middle = _TEXT_MARGIN + _LEGEND_LINE, y - _LINE_HEIGHT / 4
    return (
        f'<path d="M{_TEXT_MARGIN},{middle} L{end},{middle}" stroke="{_GREY}"{_line_of(kind)}/>'
        f'<text x="{end + _TEXT_MARGIN}" y="{y}" fill="{_GREY}">{kind} route</text>'
    )


def _at(point: complex) -> str:
    return f"{point.real:.1f},{point.imag:.1f}"


def _drawn_site(topology: Topology, tag: str, place: complex) -> str:
    site = topology.sites.get(tag)
    dash = ' stroke-dasharray="3 3"' if site is None else ""
    region = "not reached" if site is None else site.region
    x, y = place.real, place.imag
    return (
        f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE_RADIUS}" fill="#eef2ff" stroke="#4338ca"{dash}/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" font-weight="bold">{_escaped(tag)}</text>'
        f'<text x="{x:.1f}" y="{y + _NODE_RADIUS + 13:.1f}" text-anchor="middle" font-size="10" fill="{_GREY}">'
        f"{_escaped(region)}</text></g>"
    )


def _escaped(text: str) -> str:
    """Keys and errors may hold what no XML can."""
    return escape(NOT_TEXT.sub("\ufffd", text))
