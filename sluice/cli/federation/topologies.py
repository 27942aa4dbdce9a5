"""All sites that links lead to, asked one after the other: `sluice route map`."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import asdict

from sluice.cli.federation.dynamic_routes import WAY_COLUMNS, way_row
from sluice.cli.output import show_json, show_table
from sluice.cli.terminal import print_note
from sluice.errors import BadConfiguration
from sluice.federation.map.drawings import as_text
from sluice.federation.map.findings import list_findings
from sluice.federation.map.svg import as_svg
from sluice.operator.federated_sites import DiscoveredSites


class MapFormat(StrEnum):
    """How a map is written."""

    TEXT = "text"
    SVG = "svg"
    JSON = "json"


def show_map(walked: DiscoveredSites, format_: MapFormat) -> None:
    """Print the drawing on standard output; beside it, where it isn't JSON, why sites weren't reached."""
    match format_:
        case MapFormat.JSON:
            show_json(map_document(walked))
            return
        case MapFormat.SVG:
            typer.echo(as_svg(walked.topology), nl=False)
        case MapFormat.TEXT:
            _show_text(walked)
    for tag, reason in sorted(walked.not_reached.items()):
        print_note(f"{tag} was not reached: {reason}")


def _show_text(walked: DiscoveredSites) -> None:
    typer.echo(as_text(walked.topology), nl=False)
    rows = [(tag, *way_row(way)) for tag, ways in sorted(walked.ways.items()) for way in ways]
    if rows:
        show_table(("at", *WAY_COLUMNS), rows)


def write_svg(walked: DiscoveredSites, file: Path) -> None:
    """Write the drawing into a file. Raises `BadConfiguration`."""
    try:
        file.write_text(as_svg(walked.topology), encoding="utf-8")
    except OSError as error:
        raise BadConfiguration(f"{file}: {error.strerror}") from error


def map_document(walked: DiscoveredSites) -> dict[str, Any]:
    """Say what was found, for programs."""
    topology = walked.topology
    return {
        "sites": [
            {"tag": tag, "region": topology.sites[tag].region if tag in topology.sites else None}
            for tag in topology.tags
        ],
        "routes": [
            {
                "source": route.source,
                "dest": route.dest,
                "kind": route.bridge.kind.value,
                "state": route.state,
                "bridge": route.bridge,
            }
            for route in topology.routes
        ],
        "findings": [
            {
                "concern": finding.concern.value,
                "effect": finding.effect.value,
                "sites": list(finding.sites),
                "routes": [route.name for route in finding.routes],
                "text": finding.text,
            }
            for finding in list_findings(topology)
        ],
        "not_reached": dict(walked.not_reached),
        "ways": [{"at": tag, **asdict(way)} for tag, ways in sorted(walked.ways.items()) for way in ways],
    }
