"""All sites that links lead to, asked one after the other: `sluice route map`."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from msgspec.structs import asdict

from sluice.cli.federation.dynamic_routes import WAY_COLUMNS, way_row
from sluice.cli.output import show_json, show_table
from sluice.cli.terminal import note
from sluice.errors import BadConfiguration
from sluice.federation.map.drawings import as_text
from sluice.federation.map.findings import findings
from sluice.federation.map.svg import as_svg
from sluice.operator.federated_sites import Walked


class MapFormat(StrEnum):
    """How a map is written."""

    TEXT = "text"
    SVG = "svg"
    JSON = "json"


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
