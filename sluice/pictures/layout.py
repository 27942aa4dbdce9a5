"""Places boxes, lines and labels in layers, by Sugiyama's method, which `grandalf` implements.

Sizes are computed for the widest font, so the layout doesn't depend on fonts. Labels are laid out as vertices, like
boxes, so that labels don't overlap boxes or lines.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import itemgetter

from grandalf import graphs
from grandalf.layouts import SugiyamaLayout, VertexViewer

from sluice.pictures.svg import LINE_HEIGHT, Colour, Point, Size, text_width

_APART = 22  # gap in pixels between neighbouring boxes and lines
_BETWEEN_LAYERS = 36  # gap in pixels between layers, where lines bend
_HEAD = 9  # length of an arrow's head in pixels
_MARGIN = 16
_INSIDE = 12  # gap in pixels between a box and its text
LABEL_GAP = 3  # gap in pixels between a label and lines
_ROUNDS = 10  # number of iterations that sort the layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box with lines of text. The first line is the box's name, in bold. `title` is the tooltip."""

    lines: tuple[str, ...]
    title: str = ""
    dashed: bool = False
    colour: Colour = Colour.EDGE

    @property
    def size(self) -> Size:
        """The size of the box, for which the text is the measure."""
        return Size(max(map(text_width, self.lines)) + 2 * _INSIDE, LINE_HEIGHT * len(self.lines) + _INSIDE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A line from one node to another, with an arrow at its end or at both ends, and perhaps a label."""

    source: str
    dest: str
    lines: tuple[str, ...] = ()
    title: str = ""
    colour: Colour = Colour.QUIET
    width: float = 1.5
    dash: str = ""
    both_ways: bool = False

    @property
    def label(self) -> Size | None:
        """The size of the line's label; None if the line has no label."""
        if not self.lines:
            return None
        return Size(max(map(text_width, self.lines)) + 8, LINE_HEIGHT * len(self.lines) + 2 * LABEL_GAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLine:
    """A line's Bézier curves: `points` has the first point, and three points for each curve.

    `label` is the centre of the line's label, if any. `heads` has the start point and the tip of each arrow's head.
    """

    points: tuple[Point, ...]
    heads: tuple[tuple[Point, Point], ...]
    label: Point | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The positions of a graph's elements: centres of boxes by node name, and lines in the order of the edges."""

    size: Size
    boxes: Mapping[str, Point]
    lines: Sequence[PlacedLine]


class _Vertex(graphs.Vertex):  # type: ignore[misc]  # grandalf has no types
    """A vertex of grandalf for a box or a label. In `view`, x and w are along the layer, y and h across the layers."""

    def __init__(self, size: Size, *, downwards: bool) -> None:
        super().__init__()
        along, across = (size.width, size.height) if downwards else (size.height, size.width)
        self.view = VertexViewer(w=along, h=across)


class _EdgePart(graphs.Edge):  # type: ignore[misc]  # grandalf has no types
    """A part of a line, between two stops. grandalf sets the points: one in each layer between the stops."""

    points: Sequence[Point]

    def __init__(self, source: _Vertex, dest: _Vertex) -> None:
        super().__init__(source, dest)
        self.view = self

    def setpath(self, points: Sequence[Point]) -> None:
        """Set the part's points (called by grandalf)."""
        self.points = points


def lay_out(nodes: Mapping[str, Node], edges: Sequence[Edge], *, downwards: bool = False) -> Layout:
    """Lay out a graph from left to right, or downwards, so that boxes and labels don't overlap.

    Not thread-safe: grandalf has global state, and sets the interpreter's recursion limit.
    """
    stops = {name: _Vertex(node.size, downwards=downwards) for name, node in nodes.items()}
    labels = [None if edge.label is None else _Vertex(edge.label, downwards=downwards) for edge in edges]
    chains = [
        [_EdgePart(*ends) for ends in pairwise(filter(None, (stops[edge.source], label, stops[edge.dest])))]
        for edge, label in zip(edges, labels, strict=True)
    ]
    graph = graphs.Graph([*stops.values(), *filter(None, labels)], [piece for chain in chains for piece in chain])
    layers = _place_components([_sort_layers(component, chains) for component in graph.C])
    paths = [[chain[0].points[0], *(point for piece in chain for point in piece.points[1:])] for chain in chains]
    _spread_ends(paths, edges, stops)

    def place_point(point: Point) -> Point:
        along, across = (_MARGIN + round(number) for number in point)
        return (along, across) if downwards else (across, along)

    def place_line(edge: Edge, label: _Vertex | None, path: Sequence[Point]) -> PlacedLine:
        points, heads = _route_line(path, layers, stops[edge.source], stops[edge.dest], both_ways=edge.both_ways)
        return PlacedLine(
            points=tuple(map(place_point, points)),
            heads=tuple((place_point(start), place_point(tip)) for start, tip in heads),
            label=None if label is None else place_point(label.view.xy),
        )

    width, height = place_point(
        (
            max((stop.view.xy[0] + stop.view.w / 2 for stop in graph.V()), default=0),
            max((centre + half for centre, half in layers.items()), default=0),
        )
    )
    return Layout(
        size=Size(width + _MARGIN, height + _MARGIN),
        boxes={name: place_point(stop.view.xy) for name, stop in stops.items()},
        lines=list(map(place_line, edges, labels, paths)),
    )


def _sort_layers(component: graphs.graph_core, chains: Sequence[Sequence[_EdgePart]]) -> SugiyamaLayout:
    """Assign a connected component's boxes and labels to layers, and sort the layers so that few lines cross."""
    component.get_scs_with_feedback()
    # If a line closes a cycle, all parts of the line are inverted, so that its label stays between the boxes.
    turned = [piece for chain in chains if any(piece.feedback for piece in chain) for piece in chain]
    layout = SugiyamaLayout(component)
    layout.xspace = _APART
    layout.dw = layout.dh = 1  # a line's size in pixels where it crosses a layer
    layout.init_all(inverted_edges=[piece for piece in turned if piece in component.sE], optimize=True)
    layout.draw(_ROUNDS)
    return layout


def _place_components(layouts: Sequence[SugiyamaLayout]) -> dict[float, float]:
    """Place separate components side by side, in common layers. Returns half of each layer's height by its centre."""
    start = 0.0
    for layout in layouts:
        for left, right in (pair for layer in layout.layers for pair in pairwise(vertex.view for vertex in layer)):
            # grandalf averages several placements, which can make neighbours in a layer overlap.
            nearest = left.xy[0] + (left.w + right.w) / 2 + _APART
            right.xy = max(right.xy[0], nearest), right.xy[1]
        views = [vertex.view for layer in layout.layers for vertex in layer]
        shift = start - min(view.xy[0] - view.w / 2 for view in views)
        for view in views:
            view.xy = view.xy[0] + shift, 0.0
        start = max(view.xy[0] + view.w / 2 for view in views) + _APART
    half_heights: dict[float, float] = {}
    end = -_BETWEEN_LAYERS
    for layer in zip_longest(*(layout.layers for layout in layouts), fillvalue=()):
        views = [vertex.view for part in layer for vertex in part]
        half = max(view.h for view in views) / 2
        centre = end + _BETWEEN_LAYERS + half
        for view in views:
            view.xy = view.xy[0], centre
        half_heights[centre] = half
        end = centre + half
    for layout in layouts:
        layout.draw_edges()
    return half_heights


def _spread_ends(paths: Sequence[list[Point]], edges: Sequence[Edge], stops: Mapping[str, _Vertex]) -> None:
    """Spread the ends of lines along the sides of boxes, in an order in which lines don't cross near the box."""
    sides: defaultdict[tuple[str, bool], list[tuple[list[Point], int, float]]] = defaultdict(list)
    for path, edge in zip(paths, edges, strict=True):
        for name, end, next_ in ((edge.source, 0, 1), (edge.dest, -1, -2)):
            sides[name, path[next_][1] > path[end][1]].append((path, end, path[next_][0]))
    for (name, _), ends in sides.items():
        view = stops[name].view
        for number, (path, end, _) in enumerate(sorted(ends, key=itemgetter(2)), start=1):
            path[end] = view.xy[0] + view.w * (number / (len(ends) + 1) - 0.5), view.xy[1]


def _route_line(
    path: Sequence[Point], layers: Mapping[float, float], source: _Vertex, dest: _Vertex, *, both_ways: bool
) -> tuple[list[Point], list[tuple[Point, Point]]]:
    """Route a line so that it bends only between layers, never between boxes. Returns points and arrow heads."""
    sign = 1 if path[-1][1] > path[0][1] else -1
    knots = [(along, across + end * sign * layers[across]) for along, across in path for end in (-1, 1)]
    (first, top), (last, bottom) = path[0], path[-1]
    tail = first, top + sign * source.view.h / 2
    tip = last, bottom - sign * dest.view.h / 2
    start = tail[0], tail[1] + sign * _HEAD * both_ways
    end = tip[0], tip[1] - sign * _HEAD
    knots[:2] = [start, max(start, knots[1], key=lambda knot: sign * knot[1])]
    knots[-2:] = [min(end, knots[-2], key=lambda knot: sign * knot[1]), end]
    points = [start]
    for (along, across), (next_along, next_across) in pairwise(dict.fromkeys(knots)):
        middle = (across + next_across) / 2
        points += [(along, middle), (next_along, middle), (next_along, next_across)]
    return points, [(end, tip), *([(start, tail)] if both_ways else [])]
