"""A topology as text, and what every drawing says of a route. Pure: equal topologies give equal drawings.

Kinds of routes are told apart by their lines, here and in `svg`.
"""

from collections.abc import Iterator

from msgspec import UNSET

from sluice.federation.links.links import RouteKind
from sluice.federation.map.findings import list_findings
from sluice.federation.map.topology import Route, Topology

_ARROWS = {RouteKind.QUEUE: "══▶", RouteKind.STATIC: "──▶", RouteKind.DYNAMIC: "┄┄▶"}


def as_text(topology: Topology) -> str:
    """Write each site with the routes that leave it, then warnings. `──▶` static, `┄┄▶` dynamic, `══▶` queue route."""
    lines = [line for tag in topology.tags for line in _site_lines(topology, tag)]
    warnings = [f"! {warning}" for warning in list_findings(topology)]
    return "\n".join([*lines, *([""] if warnings else []), *warnings]) + "\n"


def route_label(route: Route) -> str:
    """Say what a route takes: the exchange, or queue, and the key."""
    return f"{route.bridge.src} {_route_keys(route)}".rstrip()


def _route_keys(route: Route) -> str:
    new_key = "" if route.bridge.dest_key is UNSET else f"as {route.bridge.dest_key}"
    return f"{route.bridge.key} {new_key}".strip()


def route_title(route: Route) -> str:
    """Say all of a route in one line."""
    bridge = route.bridge
    ends = f"{route.source} {bridge.src} to {route.dest} {bridge.dest}"
    key = f", key {keys}" if (keys := _route_keys(route)) else ""
    return f"{ends}{key}, {bridge.kind}, {bridge.name}, {route.state}"


def _site_lines(topology: Topology, tag: str) -> Iterator[str]:
    site = topology.sites.get(tag)
    region = "" if site is None or site.region == tag else site.region
    yield f"{tag} (not reached)" if site is None else f"{tag} {region}".rstrip()
    rows: list[tuple[str, str, str, str]] = []
    for route in topology.routes:
        if route.source == tag:
            bridge = route.bridge
            key, arrow = f" {keys} " if (keys := _route_keys(route)) else "", _ARROWS[bridge.kind]
            dest, rest = f"{route.dest} {bridge.dest}", f"{route.name}, {bridge.kind}, {route.state}"
            rows.append((bridge.src, f"{arrow[0]}{key}{arrow}", dest, rest))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1, 2)]
    for row in rows:
        source, arrow, dest, rest = (cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True))
        yield f"  {source} {arrow} {dest}  {rest}".rstrip()
