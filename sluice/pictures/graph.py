"""Draws a graph's boxes, lines and labels at the positions that `layout` computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.pictures.layout import LABEL_GAP, Edge, Node, PlacedLine, lay_out
from sluice.pictures.svg import LINE_HEIGHT, Colour, Point, Size, arrowhead, box, curve, escape_xml, text


@dataclass(frozen=True, slots=True)
class Graph:
    """A drawn graph: its size and its SVG elements."""

    size: Size
    parts: Sequence[str]


def draw_graph(nodes: Mapping[str, Node], edges: Sequence[Edge], *, downwards: bool = False) -> Graph:
    """Draw a graph, laid out from left to right, or downwards."""
    layout = lay_out(nodes, edges, downwards=downwards)
    return Graph(
        layout.size,
        [
            *(_draw_edge(edge, line) for edge, line in zip(edges, layout.lines, strict=True)),
            *(_draw_node(node, layout.boxes[name]) for name, node in nodes.items()),
        ],
    )


def _draw_node(node: Node, centre: Point) -> str:
    top = centre[1] - LINE_HEIGHT * len(node.lines) / 2 - 4
    name, *others = (
        text(
            (centre[0], top + LINE_HEIGHT * number),
            line,
            bold=number == 1,
            colour=Colour.INK if number == 1 else Colour.QUIET,
        )
        for number, line in enumerate(node.lines, start=1)
    )
    title = f"<title>{escape_xml(node.title)}</title>" if node.title else ""
    return f"<g>{title}{box(centre, node.size, dashed=node.dashed, colour=node.colour)}{name}{''.join(others)}</g>"


def _draw_edge(edge: Edge, line: PlacedLine) -> str:
    title = f"<title>{escape_xml(edge.title)}</title>" if edge.title else ""
    path = curve(line.points, width=edge.width, dash=edge.dash)
    heads = "".join(arrowhead(*ends) for ends in line.heads)
    label = ""
    if edge.label is not None and line.label is not None:
        (x, y), size, height = line.label, edge.label, edge.label.height - 2 * LABEL_GAP
        # A rectangle behind the label hides the line.
        label = (
            f'<rect class="{Colour.PAPER}" x="{x - size.width / 2:.1f}" y="{y - height / 2:.1f}"'
            f' width="{size.width:.1f}" height="{height:.1f}" fill="currentColor"/>'
        )
        baseline = y - height / 2 - LABEL_GAP - 1
        for number, said in enumerate(edge.lines, start=1):
            label += text((x, baseline + LINE_HEIGHT * number), said)
    return f'<g class="line {edge.colour}">{title}{path}{heads}{label}</g>'
