"""All sites that links lead to, asked one after the other: `sluice route map`."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import asdict, replace

from sluice.cli.federation.dynamic_routes import WAY_COLUMNS, way_row
from sluice.cli.federation.route_declarations import Ends
from sluice.cli.federation.routes import MapFormat
from sluice.cli.federation.sites import OpenSite, open_named
from sluice.cli.output import note, show_json, show_table
from sluice.cli.site_names import SiteName
from sluice.errors import BadConfiguration, SluiceError
from sluice.federation.links.links import Bridge
from sluice.federation.map.drawings import as_text
from sluice.federation.map.findings import Finding, findings, of_route
from sluice.federation.map.svg import as_svg
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.operations import ListWays, SiteView, WayView
from sluice.stages import stage_of

MAX_SITES = 200
MAX_NEARBY = 16  # sites that are asked for what a new route does: with each a second goes by


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What was found. `not_reached` has the reasons, by tag or name, for sites that couldn't be asked.

    `ways` are those of dynamic routes by the tag of the site that they begin at, as the site says them.
    """

    topology: Topology
    not_reached: Mapping[str, str]
    ways: Mapping[str, Sequence[WayView]]


def walk(names: Iterable[str], *, most: int = MAX_SITES) -> Walked:
    """Ask these sites, and all that links lead to, the nearest first, until `most` have answered.

    Raises what asking one of these themselves raises; the others are noted.
    """
    return walk_from((open_named(SiteName.parse(name)) for name in names), most=most)


def walk_from(sites: Iterable[OpenSite], *, most: int = MAX_SITES) -> Walked:
    """Ask these sites, and all that links lead to, as `walk` does."""
    views: dict[str, SiteView] = {}
    ways: dict[str, Sequence[WayView]] = {}
    not_reached: dict[str, str] = {}
    to_visit = deque[_Neighbour]()
    for opened in sites:
        view = opened.view()
        to_visit.extend(_take_in(opened, view, views))
        ways[view.tag] = _ways(opened, view)
    tried: set[tuple[str, SiteName | None]] = set()
    while to_visit and len(views) < most:
        stop = to_visit.popleft()
        # What one site's credentials don't reach, another's may.
        if stop.tag in views or (stop.tag, stop.name) in tried:
            continue
        tried.add((stop.tag, stop.name))
        try:
            opened, view = _visited(stop)
        except SluiceError as error:
            not_reached[stop.tag] = str(error)
        else:
            to_visit.extend(_take_in(opened, view, views))
            ways[view.tag] = _ways(opened, view)
    return Walked(
        topology=Topology.of(_site(view, views.keys()) for view in views.values()),
        not_reached={tag: reason for tag, reason in not_reached.items() if tag not in views},
        ways=ways,
    )


def warnings_of(ends: Ends, route: Bridge) -> tuple[Finding, ...]:
    """Say what messages a route that was just added doubles or loses, as far as the sites nearby know.

    Nothing where they can't be asked: the route is there, and the map tells of it.
    """
    try:
        topology = walk([str(ends.site.name)], most=MAX_NEARBY).topology
    except SluiceError:
        return ()
    return of_route(topology, site=ends.view.tag, name=route.name)


def _ways(opened: OpenSite, view: SiteView) -> Sequence[WayView]:
    """Only a site with dynamic routes is asked for them."""
    if not any(each.dynamic for each in view.bridges):
        return ()
    return opened.client.ask(ListWays()).ways


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbour:
    """A site that a link leads to. `name` is None where it can't be asked by who asked the site that has the link."""

    tag: str
    account: str
    name: SiteName | None


def _take_in(opened: OpenSite, view: SiteView, views: dict[str, SiteView]) -> list[_Neighbour]:
    known = views.setdefault(view.tag, view)
    if known.address.control_queue_url != view.address.control_queue_url:
        raise BadConfiguration(
            f"two sites have the tag {view.tag}: in {known.address.account}/{known.address.region}"
            f" and {view.address.account}/{view.address.region}"
        )
    neighbours: list[_Neighbour] = []
    for link in view.links:
        there = link.endpoints[0]
        stage = stage_of(there.control_queue_url.rsplit("/", 1)[-1])
        name = opened.name.beside(there.region, there.account, of_account=view.address.account, stage=stage)
        neighbours.append(_Neighbour(tag=link.peer, account=there.account, name=name))
    return neighbours


def _visited(stop: _Neighbour) -> tuple[OpenSite, SiteView]:
    if stop.name is None:
        raise BadConfiguration(
            f"account {stop.account} isn't asked with these credentials: name the site, too, as PROFILE@REGION"
        )
    opened = open_named(stop.name)
    view = opened.view()
    if view.tag != stop.tag:
        raise BadConfiguration(f"the site at {stop.name} has the tag {view.tag}")
    return opened, view


def _site(view: SiteView, reached: Iterable[str]) -> MappedSite:
    """Leave out what a peer declared over a link and was reached to say itself: it would be there twice."""
    links = [each for each in view.links if not (each.served and each.peer in reached)]
    names = {each.name for each in links}
    shown_names = {each.src: each.reads for each in view.bridges if each.src_is_queue and each.reads}
    return MappedSite(
        tag=view.tag,
        region=view.address.region,
        exchanges={exchange.name: exchange.type for exchange in view.exchanges},
        links=tuple(links),
        statuses={each.name: each.status for each in links},
        bridges=tuple(
            replace(each.declared_bridge(), src=shown_names.get(each.src, each.src))
            for each in view.bridges
            if each.link in names
        ),
        states={each.name: each.state for each in view.bridges},
        feeds=tuple(each.binding(queue=shown_names.get(each.queue)) for each in view.feeds),
    )


def show(walked: Walked, format_: MapFormat) -> None:
    """Print the drawing on standard output; beside it, where it isn't JSON, why sites weren't reached."""
    match format_:
        case MapFormat.JSON:
            show_json(document(walked))
            return
        case MapFormat.SVG:
            typer.echo(as_svg(walked.topology), nl=False)
        case MapFormat.TEXT:
            _show_text(walked)
    for tag, reason in sorted(walked.not_reached.items()):
        note(f"{tag} was not reached: {reason}")


def _show_text(walked: Walked) -> None:
    typer.echo(as_text(walked.topology), nl=False)
    rows = [(tag, *way_row(way)) for tag, ways in sorted(walked.ways.items()) for way in ways]
    if rows:
        show_table(("at", *WAY_COLUMNS), rows)


def write_svg(walked: Walked, file: Path) -> None:
    """Write the drawing into a file. Raises `BadConfiguration`."""
    try:
        file.write_text(as_svg(walked.topology), encoding="utf-8")
    except OSError as error:
        raise BadConfiguration(f"{file}: {error.strerror}") from error


def document(walked: Walked) -> dict[str, Any]:
    """Say what was found, for programs."""
    topology = walked.topology
    return {
        "sites": [
            {"tag": tag, "region": topology.sites[tag].region if tag in topology.sites else None}
            for tag in topology.tags
        ],
        "routes": [
            {
                "source": each.source,
                "dest": each.dest,
                "kind": each.bridge.kind.value,
                "state": each.state,
                "bridge": each.bridge,
            }
            for each in topology.routes
        ],
        "findings": [
            {
                "concern": each.concern.value,
                "effect": each.effect.value,
                "sites": list(each.sites),
                "routes": [route.name for route in each.routes],
                "text": each.text,
            }
            for each in findings(topology)
        ],
        "not_reached": dict(walked.not_reached),
        "ways": [{"at": tag, **asdict(way)} for tag, ways in sorted(walked.ways.items()) for way in ways],
    }
