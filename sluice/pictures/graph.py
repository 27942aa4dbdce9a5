"""Boxes with what they say, and lines between them with their labels, drawn where the layout puts them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.pictures.layout import Line, PlacedLine, Point, Size, laid_out
from sluice.pictures.svg import LINE_HEIGHT, Colour, along, box, curve, escaped, head, text, width_of

_INSIDE = 12  # px between a box and what it says
_GAP = 3  # px between a label and lines
_FAR = 12  # px that a label may be off its line before it is joined to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box. The first of its lines is its name, in bold; `title` tells all of it."""

    says: tuple[str, ...]
    title: str = ""
    dashed: bool = False
    colour: Colour = Colour.EDGE

    @property
    def size(self) -> Size:
        """As large as what it says needs it."""
        return Size(max(map(width_of, self.says)) + 2 * _INSIDE, LINE_HEIGHT * len(self.says) + _INSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A line from one node to another, with arrows at its end, or at both."""

    source: str
    dest: str
    says: tuple[str, ...] = ()
    title: str = ""
    colour: Colour = Colour.QUIET
    width: float = 1.5
    dash: str = ""
    both_ways: bool = False

    @property
    def label(self) -> Size | None:
        """The room that its label needs, where it has one."""
        if not self.says:
            return None
        return Size(max(map(width_of, self.says)) + 8, LINE_HEIGHT * len(self.says) + 2 * _GAP)


@dataclass(frozen=True, slots=True)
class Graph:
    """What was drawn, and how large it is."""

    size: Size
    parts: Sequence[str]


def drawn(nodes: Mapping[str, Node], edges: Sequence[Edge], *, downwards: bool = False) -> Graph:
    """Lay out from left to right, or downwards, and draw. Raises `BadConfiguration` where Graphviz isn't installed."""
    lines = [Line(source=edge.source, dest=edge.dest, label=edge.label, both_ways=edge.both_ways) for edge in edges]
    layout = laid_out({name: node.size for name, node in nodes.items()}, lines, downwards=downwards)
    return Graph(
        layout.size,
        [
            *(_drawn_edge(edge, line) for edge, line in zip(edges, layout.lines, strict=True)),
            *(_drawn_node(node, layout.boxes[name]) for name, node in nodes.items()),
        ],
    )


def _drawn_node(node: Node, centre: Point) -> str:
    top = centre[1] - LINE_HEIGHT * len(node.says) / 2 - 4
    name, *others = (
        text(
            (centre[0], top + LINE_HEIGHT * number),
            line,
            bold=number == 1,
            colour=Colour.INK if number == 1 else Colour.QUIET,
        )
        for number, line in enumerate(node.says, start=1)
    )
    title = f"<title>{escaped(node.title)}</title>" if node.title else ""
    return f"<g>{title}{box(centre, node.size, dashed=node.dashed, colour=node.colour)}{name}{''.join(others)}</g>"


def _drawn_edge(edge: Edge, line: PlacedLine) -> str:
    title = f"<title>{escaped(edge.title)}</title>" if edge.title else ""
    path = curve(line.points, width=edge.width, dash=edge.dash)
    heads = "".join(head(*each) for each in line.heads)
    label = "" if edge.label is None or line.label is None else _drawn_label(edge.says, edge.label, line.label, line)
    return f'<g class="line {edge.colour}">{title}{path}{heads}{label}</g>'


def _drawn_label(says: Sequence[str], size: Size, centre: Point, line: PlacedLine) -> str:
    """Write on paper, so that lines that pass leave it legible; joined to its line where that is at some distance."""
    (x, y), width, height = centre, size.width, size.height - 2 * _GAP

    def on_label(point: Point) -> Point:
        return max(x - width / 2, min(point[0], x + width / 2)), max(y - height / 2, min(point[1], y + height / 2))

    near = min(along(line.points), key=lambda point: math.dist(point, on_label(point)))
    edge = on_label(near)
    leader = "" if math.dist(near, edge) <= _FAR else curve([edge, edge, near, near], width=0.75)
    paper = (
        f'<rect class="{Colour.PAPER}" x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}"'
        f' height="{height:.1f}" fill="currentColor" fill-opacity="0.75"/>'
    )
    baseline = y - height / 2 - _GAP - 1
    lines = (text((x, baseline + LINE_HEIGHT * number), said) for number, said in enumerate(says, start=1))
    return f"{leader}{paper}{''.join(lines)}"
