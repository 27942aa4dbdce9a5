"""A topology drawn as SVG: a box a site, a line for all routes between two sites that are alike. Pure.

Graphviz lays it out; equal topologies give equal drawings.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from sluice.federation.links.links import RouteKind
from sluice.federation.links.states import LinkState
from sluice.federation.map.drawings import label_of, state_of, title_of
from sluice.federation.map.findings import findings
from sluice.federation.map.topology import Route, Topology
from sluice.pictures.layout import Line, PlacedLine, Point, Size, laid_out
from sluice.pictures.svg import (
    CELL_WIDTH,
    LINE_HEIGHT,
    Colour,
    along,
    box,
    curve,
    document,
    escaped,
    head,
    shortened,
    text,
    width_of,
)

MAX_LABELS = 4  # of one line; what more it has its title tells
MAX_CELLS = 28  # of a label's line, and a site's tag
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
_INSIDE = 12  # px between a box and what it says
_GAP = 3  # px between a label and lines
_FAR = 14  # px that a label may be off its line before it is joined to it
_SAMPLE = 44  # px of a line in the legend
_WARNING_CELLS = 110


def as_svg(topology: Topology) -> str:
    """Draw sites from left to right, lines with their keys, a legend, and warnings. Names that are long are shortened.

    A box or line tells all of itself as its title. Raises `BadConfiguration` where Graphviz isn't installed.
    """
    labels = {tag: _site_labels(topology, tag) for tag in topology.tags}
    sizes = {
        tag: Size(max(map(width_of, said)) + 2 * _INSIDE, LINE_HEIGHT * len(said) + _INSIDE)
        for tag, said in labels.items()
    }
    strands = tuple(_strands(topology.routes))
    layout = laid_out(sizes, [strand.line for strand in strands])
    parts = [
        *(_drawn_strand(strand, line) for strand, line in zip(strands, layout.lines, strict=True)),
        *(_drawn_site(topology, tag, layout.boxes[tag], sizes[tag], labels[tag]) for tag in topology.tags),
    ]
    legend, legend_width = _legend(strands, top=layout.size.height + _MARGIN)
    cells = max(_WARNING_CELLS, int((layout.size.width - 2 * _MARGIN) / CELL_WIDTH))
    warnings = [line for finding in findings(topology) for line in wrap(f"⚠ {finding}", cells, subsequent_indent="  ")]
    top = layout.size.height + (2 * LINE_HEIGHT + _MARGIN if strands else 0)
    parts += legend
    parts += [
        text((_MARGIN, top + LINE_HEIGHT * number), line, colour=Colour.BAD, anchor="start")
        for number, line in enumerate(warnings)
    ]
    widths = [layout.size.width, legend_width, *(width_of(line) + 2 * _MARGIN for line in warnings)]
    size = Size(max(widths), top + LINE_HEIGHT * len(warnings))
    return document(size, parts, title=f"{len(topology.tags)} sites, {len(topology.routes)} routes")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strand:
    """Routes between two sites that are one line: of one kind and state; both ways, where the keys are equal."""

    source: str
    dest: str
    kind: RouteKind
    colour: Colour
    labels: tuple[str, ...]
    routes: tuple[Route, ...]

    @property
    def said(self) -> list[str]:
        """Its label, line by line."""
        more = len(self.labels) - MAX_LABELS
        return [*self.labels[:MAX_LABELS], *([f"and {more} more"] if more > 0 else [])]

    @property
    def line(self) -> Line:
        """What the layout has to know."""
        size = Size(max(map(width_of, self.said)) + 8, LINE_HEIGHT * len(self.said) + 2 * _GAP)
        both_ways = any(route.source == self.dest for route in self.routes)
        return Line(source=self.source, dest=self.dest, label=size, both_ways=both_ways)


def _strands(routes: Sequence[Route]) -> Iterator[_Strand]:
    alike: defaultdict[tuple[str, str, RouteKind, Colour], list[Route]] = defaultdict(list)
    for route in routes:
        alike[route.source, route.dest, route.bridge.kind, colour_of(route)].append(route)
    labels = {key: tuple(dict.fromkeys(map(_label, group))) for key, group in alike.items()}
    for (source, dest, kind, colour), group in alike.items():
        back = dest, source, kind, colour
        is_both = labels.get(back) == labels[source, dest, kind, colour]
        if is_both and source > dest:
            continue  # it is drawn with the other way
        yield _Strand(
            source=source,
            dest=dest,
            kind=kind,
            colour=colour,
            labels=labels[source, dest, kind, colour],
            routes=(*group, *(alike[back] if is_both else ())),
        )


def colour_of(route: Route) -> Colour:
    """Return the colour of the route's state."""
    if route.is_failed:
        return Colour.BAD
    return Colour.QUIET if route.bridge.paused else _COLOURS.get(LinkState(route.state), Colour.QUIET)


def _label(route: Route) -> str:
    """Say what it takes, and its state where that isn't as it should be: nobody has to tell colours apart."""
    state, label = state_of(route).partition(":")[0], shortened(label_of(route), MAX_CELLS)
    return label if state == LinkState.OPERATIONAL else f"{label} ({state.lower()})"


def _site_labels(topology: Topology, tag: str) -> list[str]:
    site = topology.sites.get(tag)
    beside = "not reached" if site is None else site.region
    return [shortened(tag, MAX_CELLS), *([beside] if beside not in {"", tag} else [])]


def _drawn_site(topology: Topology, tag: str, centre: Point, size: Size, labels: Sequence[str]) -> str:
    top = centre[1] - LINE_HEIGHT * len(labels) / 2 - 4
    lines = (
        text((centre[0], top + LINE_HEIGHT * number), label, bold=number == 1, colour=_INK[number == 1])
        for number, label in enumerate(labels, start=1)
    )
    return f"<g><title>{escaped(tag)}</title>{box(centre, size, dashed=tag not in topology.sites)}{''.join(lines)}</g>"


_INK = {True: Colour.INK, False: Colour.QUIET}


def _drawn_strand(strand: _Strand, line: PlacedLine) -> str:
    """Draw a line with its label; behind that is paper, so that lines that pass leave it legible."""
    x, y = line.label
    width, height = strand.line.label.width, strand.line.label.height - 2 * _GAP
    title = "\n".join(map(title_of, strand.routes))
    baseline = y - height / 2 - _GAP - 1
    said = "".join(text((x, baseline + LINE_HEIGHT * number), label) for number, label in enumerate(strand.said, 1))
    heads = "".join(head(*each) for each in line.heads)
    return (
        f'<g class="line {strand.colour}"><title>{escaped(title)}</title>'
        f"{curve(line.points, width=_WIDTHS[strand.kind], dash=_DASHES[strand.kind])}{heads}"
        f"{_leader(line, height)}"
        f'<rect class="{Colour.PAPER}" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}"'
        f' height="{height:.1f}" fill="currentColor" fill-opacity="0.75"/>{said}</g>'
    )


def _leader(line: PlacedLine, height: float) -> str:
    """Join a label to its line where that passes at some distance."""
    x, y = line.label
    near_x, near_y = min(along(line.points), key=lambda point: math.dist(point, line.label))
    if abs(near_y - y) <= height / 2 + _FAR:
        return ""
    edge = y + math.copysign(height / 2, near_y - y)
    return curve([(x, edge), (x, edge), (near_x, near_y), (near_x, near_y)], width=0.75)


def _legend(strands: Sequence[_Strand], *, top: float) -> tuple[list[str], float]:
    """Draw a sample of each kind and of each state that is there, in a row; with the row's width."""
    kinds = [(kind, Colour.QUIET, f"{kind} route") for kind in RouteKind if any(each.kind is kind for each in strands)]
    states = [
        (RouteKind.STATIC, colour, said)
        for colour, said in _STATES.items()
        if any(each.colour is colour for each in strands)
    ]
    parts: list[str] = []
    x = float(_MARGIN)
    for kind, colour, said in [*kinds, *states]:
        end = x + _SAMPLE
        sample = curve([(x, top), (x, top), (end, top), (end, top)], width=_WIDTHS[kind], dash=_DASHES[kind])
        parts.append(
            f'<g class="{colour}">{sample}</g>' + text((end + 6, top + 4), said, colour=Colour.QUIET, anchor="start")
        )
        x = end + width_of(said) + 2 * _INSIDE
    return parts, x
