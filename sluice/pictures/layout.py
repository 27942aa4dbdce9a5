"""Where boxes, lines and their labels stand: in layers, as Sugiyama's method has them, which `grandalf` implements.

It is told sizes only, which are those of the widest font, so no font of a machine moves anything. A label is a vertex
on its line: nothing else is drawn where it stands.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import itemgetter

from grandalf import graphs
from grandalf.layouts import SugiyamaLayout, VertexViewer

from sluice.pictures.svg import LINE_HEIGHT, Colour, Point, Size, width_of

_APART = 22  # px between boxes, and between lines, that stand beside each other
_BETWEEN_LAYERS = 36  # px, in which lines bend
_HEAD = 9  # px, an arrow's head
_MARGIN = 16
_INSIDE = 12  # px between a box and what it says
LABEL_GAP = 3  # px between a label and lines
_ROUNDS = 10  # of sorting the layers


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
        return Size(max(map(width_of, self.says)) + 8, LINE_HEIGHT * len(self.says) + 2 * LABEL_GAP)


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


class _Stop(graphs.Vertex):  # type: ignore[misc]  # grandalf has no types
    """A box, or a label. In its `view`, x and w are along a layer, y and h from one layer to the next."""

    def __init__(self, size: Size, *, downwards: bool) -> None:
        super().__init__()
        along, across = (size.width, size.height) if downwards else (size.height, size.width)
        self.view = VertexViewer(w=along, h=across)


class _Piece(graphs.Edge):  # type: ignore[misc]  # grandalf has no types
    """A part of a line, from stop to stop. Grandalf sets its points: one in each layer from the one to the other."""

    points: Sequence[Point]

    def __init__(self, source: _Stop, dest: _Stop) -> None:
        super().__init__(source, dest)
        self.view = self

    def setpath(self, points: Sequence[Point]) -> None:
        """Take the points: grandalf calls it."""
        self.points = points


def laid_out(nodes: Mapping[str, Node], edges: Sequence[Edge], *, downwards: bool = False) -> Layout:
    """Lay out from left to right, or downwards: no box is on another, nor a label on a box or another.

    One thread at a time may: grandalf keeps numbers in a class, and sets the interpreter's limit of recursion.
    """
    stops = {name: _Stop(node.size, downwards=downwards) for name, node in nodes.items()}
    labels = [None if edge.label is None else _Stop(edge.label, downwards=downwards) for edge in edges]
    chains = [
        [_Piece(*ends) for ends in pairwise(filter(None, (stops[edge.source], label, stops[edge.dest])))]
        for edge, label in zip(edges, labels, strict=True)
    ]
    graph = graphs.Graph([*stops.values(), *filter(None, labels)], [piece for chain in chains for piece in chain])
    layers = _place([_sorted_layers(component, chains) for component in graph.C])
    paths = [[chain[0].points[0], *(point for piece in chain for point in piece.points[1:])] for chain in chains]
    _spread_ends(paths, edges, stops)

    def placed(point: Point) -> Point:
        along, across = (_MARGIN + round(number) for number in point)
        return (along, across) if downwards else (across, along)

    def placed_line(edge: Edge, label: _Stop | None, path: Sequence[Point]) -> PlacedLine:
        points, heads = _route(path, layers, stops[edge.source], stops[edge.dest], both_ways=edge.both_ways)
        return PlacedLine(
            points=tuple(map(placed, points)),
            heads=tuple((placed(start), placed(tip)) for start, tip in heads),
            label=None if label is None else placed(label.view.xy),
        )

    width, height = placed(
        (
            max((stop.view.xy[0] + stop.view.w / 2 for stop in graph.V()), default=0),
            max((centre + half for centre, half in layers.items()), default=0),
        )
    )
    return Layout(
        size=Size(width + _MARGIN, height + _MARGIN),
        boxes={name: placed(stop.view.xy) for name, stop in stops.items()},
        lines=list(map(placed_line, edges, labels, paths)),
    )


def _sorted_layers(component: graphs.graph_core, chains: Sequence[Sequence[_Piece]]) -> SugiyamaLayout:
    """Rank boxes and labels that lines connect, and sort each layer so that few lines cross."""
    component.get_scs_with_feedback()
    # Of a line that closes a ring all pieces are turned, so that its label is between its boxes.
    turned = [piece for chain in chains if any(piece.feedback for piece in chain) for piece in chain]
    layout = SugiyamaLayout(component)
    layout.xspace = _APART
    layout.dw = layout.dh = 1  # px, of a line that passes a layer
    layout.init_all(inverted_edges=[piece for piece in turned if piece in component.sE], optimize=True)
    layout.draw(_ROUNDS)
    return layout


def _place(layouts: Sequence[SugiyamaLayout]) -> dict[float, float]:
    """Stand what isn't connected side by side, in layers that go through all. Returns half of each one's thickness."""
    start = 0.0
    for layout in layouts:
        views = [vertex.view for layer in layout.layers for vertex in layer]
        moved = start - min(view.xy[0] - view.w / 2 for view in views)
        for view in views:
            view.xy = view.xy[0] + moved, 0.0
        start = max(view.xy[0] + view.w / 2 for view in views) + _APART
    halves: dict[float, float] = {}
    end = -_BETWEEN_LAYERS
    for layer in zip_longest(*(layout.layers for layout in layouts), fillvalue=()):
        views = [vertex.view for part in layer for vertex in part]
        half = max(view.h for view in views) / 2
        centre = end + _BETWEEN_LAYERS + half
        for view in views:
            view.xy = view.xy[0], centre
        halves[centre] = half
        end = centre + half
    for layout in layouts:
        layout.draw_edges()
    return halves


def _spread_ends(paths: Sequence[list[Point]], edges: Sequence[Edge], stops: Mapping[str, _Stop]) -> None:
    """Give lines places of their own on the sides of boxes, in the order in which they leave, so that none cross."""
    sides: defaultdict[tuple[str, bool], list[tuple[list[Point], int, float]]] = defaultdict(list)
    for path, edge in zip(paths, edges, strict=True):
        for name, end, beside in ((edge.source, 0, 1), (edge.dest, -1, -2)):
            sides[name, path[beside][1] > path[end][1]].append((path, end, path[beside][0]))
    for (name, _), ends in sides.items():
        view = stops[name].view
        for number, (path, end, _) in enumerate(sorted(ends, key=itemgetter(2)), start=1):
            path[end] = view.xy[0] + view.w * (number / (len(ends) + 1) - 0.5), view.xy[1]


def _route(
    path: Sequence[Point], layers: Mapping[float, float], source: _Stop, dest: _Stop, *, both_ways: bool
) -> tuple[list[Point], list[tuple[Point, Point]]]:
    """Bend a line between layers only, so that it passes boxes and labels of a layer straight; with its heads."""
    way = 1 if path[-1][1] > path[0][1] else -1
    knots = [(along, across + end * way * layers[across]) for along, across in path for end in (-1, 1)]
    (first, top), (last, bottom) = path[0], path[-1]
    tail = first, top + way * source.view.h / 2
    tip = last, bottom - way * dest.view.h / 2
    starts = tail[0], tail[1] + way * _HEAD * both_ways
    ends = tip[0], tip[1] - way * _HEAD
    knots[:2] = [starts, max(starts, knots[1], key=lambda knot: way * knot[1])]
    knots[-2:] = [min(ends, knots[-2], key=lambda knot: way * knot[1]), ends]
    points = [starts]
    for (along, across), (next_along, next_across) in pairwise(dict.fromkeys(knots)):
        middle = (across + next_across) / 2
        points += [(along, middle), (next_along, middle), (next_along, next_across)]
    return points, [(ends, tip), *([(starts, tail)] if both_ways else [])]
