"""Where boxes, lines and their labels stand: Graphviz' `dot` decides, which is told sizes only, never a text.

So nothing that somebody has named can mean something to it, and no font of a machine moves anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from sluice.project import NotInstalled, install_command

_INCH = 72  # points; a point of dot's is a pixel here
_APART = 22  # px between boxes, and between lines, that stand beside each other
_RANKS = 40  # px from one column to the next, or row; half of it where a label is between
_MARGIN = 16

Point = tuple[float, float]
"""x to the right, y down, in px."""


@dataclass(frozen=True, slots=True)
class Size:
    """In px."""

    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """From one box to another, with room for a label, or without one. `both_ways` has a head at either end."""

    source: str
    dest: str
    label: Size | None = None
    both_ways: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLine:
    """A line's Bézier curves: the first point, then three to a curve. `label` is its label's centre, where it has one.

    `heads` are its arrows': the point where each begins, and its tip.
    """

    points: tuple[Point, ...]
    heads: tuple[tuple[Point, Point], ...]
    label: Point | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Centres of boxes, and lines in the order in which they were given."""

    size: Size
    boxes: Mapping[str, Point]
    lines: Sequence[PlacedLine]


def laid_out(boxes: Mapping[str, Size], lines: Sequence[Line], *, downwards: bool = False) -> Layout:
    """Lay out from left to right, or downwards: no box is on another, nor a label on a box or another.

    Raises `NotInstalled` where Graphviz isn't installed.
    """
    try:
        from pygraphviz import AGraph  # noqa: PLC0415 - only where something is drawn
    except ImportError as error:
        raise NotInstalled(f"drawing needs Graphviz: {install_command('pictures')}") from error
    names = {name: f"b{number}" for name, number in zip(boxes, count())}
    graph = AGraph(directed=True, strict=False)
    graph.graph_attr.update(
        rankdir="TB" if downwards else "LR", nodesep=str(_APART / _INCH), ranksep=str(_RANKS / _INCH)
    )
    graph.node_attr.update(shape="box", label="", fixedsize="true")
    for name, size in boxes.items():
        graph.add_node(names[name], width=str(size.width / _INCH), height=str(size.height / _INCH))
    for number, line in enumerate(lines):
        ends = names[line.source], names[line.dest]
        graph.add_edge(*ends, key=str(number), dir="both" if line.both_ways else "forward")
        if line.label is not None:
            graph.get_edge(*ends, key=str(number)).attr["label"] = _room(line.label)
    graph.layout("dot")
    _, _, width, height = _numbers(graph.graph_attr["bb"]) if boxes else (0, 0, 0, 0)

    def placed(text: str) -> Point:
        x, y = _numbers(text)
        return _MARGIN + round(x), _MARGIN + round(height - y)  # whole px: processors differ in fractions

    def placed_line(number: int, line: Line) -> PlacedLine:
        attributes = graph.get_edge(names[line.source], names[line.dest], key=str(number)).attr
        parts = attributes["pos"].replace("\\\n", "").split()
        tips = {part[0]: placed(part[2:]) for part in parts if part[0] in "se"}
        points = tuple(placed(part) for part in parts if part[0] not in "se")
        froms = {"s": points[0], "e": points[-1]}
        heads = tuple((froms[end], tip) for end, tip in tips.items())
        return PlacedLine(points=points, heads=heads, label=None if line.label is None else placed(attributes["lp"]))

    return Layout(
        size=Size(round(width) + 2 * _MARGIN, round(height) + 2 * _MARGIN),
        boxes={name: placed(graph.get_node(each).attr["pos"]) for name, each in names.items()},
        lines=[placed_line(number, line) for number, line in enumerate(lines)],
    )


def _room(label: Size) -> str:
    """Write an empty table of the label's size."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{label.width:.0f}" HEIGHT="{label.height:.0f}"'
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLPADDING="0" CELLSPACING="0" {size}><TR><TD></TD></TR></TABLE>>'


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]
