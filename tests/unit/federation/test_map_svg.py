"""The route map as SVG: nothing on top of anything else, whatever sites are called, in light and dark."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.drawings import MAX_CELLS, MAX_LABELLED, MAX_LABELS, draw_svg
from sluice.federation.map.topology import MappedSite, Topology
from sluice.pictures.layout import Edge, Layout, Node, lay_out
from sluice.pictures.svg import DARK, LIGHT, Colour, Point, Size
from tests.hostile.hostile_values import any_texts

SVG = "{http://www.w3.org/2000/svg}"
UP = LinkStatus(state=LinkState.OPERATIONAL)
Area = tuple[Point, Size]

edges = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 32), st.booleans()).filter(
        lambda edge: edge[0] != edge[1]
    ),
    min_size=1,
    max_size=36,
)
# Edges for which grandalf put two boxes of a layer on each other.
OVERLAPPING = ((0, 3, 0), (0, 3, 1), (0, 6, 1), (1, 4, 0), (1, 5, 0), (2, 4, 1), (4, 0, 1), (4, 2, 1))


def link_to(peer: str) -> Link:
    return Link(name=f"to-{peer}", peer=peer, endpoints=(Endpoint(region="r", account="1", control_queue_url="u"),))


def pushed(src: str, dest: str, *, key: str = "", **fields: object) -> Bridge:
    return Bridge(
        name=f"{src}-{key}-{dest}-{fields}",
        link=f"to-{dest}",
        src=src,
        dest="x",
        key=key,
        src_is_local=True,
        **fields,  # type: ignore[arg-type]  # of any of a bridge's fields
    )


def site(tag: str, *bridges: Bridge, region: str = "") -> MappedSite:
    links = tuple({link_to(bridge.link.removeprefix("to-")) for bridge in bridges})
    statuses = {link.name: UP for link in links}
    states = {bridge.name: "Operational" for bridge in bridges}
    return MappedSite(tag=tag, region=region, links=links, link_statuses=statuses, bridges=bridges, route_states=states)


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawn).iter(f"{SVG}text")]


def titles(drawn: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(drawn).iter(f"{SVG}title")]


def overlaps(one: Area, other: Area) -> bool:
    ((x, y), size), ((other_x, other_y), other_size) = one, other
    wide, high = (size.width + other_size.width) / 2, (size.height + other_size.height) / 2
    return abs(x - other_x) < wide - 1 and abs(y - other_y) < high - 1


def along(points: Sequence[Point]) -> Iterator[Point]:
    """Points of Bézier curves, a few pixels from one to the next."""
    for first in range(0, len(points) - 1, 3):
        curve = points[first : first + 4]
        steps = max(2, int(math.dist(curve[0], curve[3]) / 4))
        for t in (step / steps for step in range(steps + 1)):
            weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
            x, y = (sum(weight * point[axis] for weight, point in zip(weights, curve, strict=True)) for axis in (0, 1))
            yield x, y


def areas(layout: Layout, nodes: Mapping[str, Node], edges: Sequence[Edge]) -> Iterator[Area]:
    yield from ((layout.boxes[name], node.size) for name, node in nodes.items())
    for line, edge in zip(layout.lines, edges, strict=True):
        assert (line.label is None) == (edge.label is None)
        if line.label is not None and edge.label is not None:
            yield line.label, edge.label


@example([(*edge, False) for edge in OVERLAPPING], False)
@given(edges, st.booleans())
def test_no_box_or_label_is_on_another_or_under_another_line_and_all_are_on_the_sheet(
    drawn: list[tuple[int, int, int, bool]], downwards: bool
) -> None:
    nodes = {str(number): Node(lines=("n" * (number + 1),) * (1 + number % 3)) for number in range(12)}
    edges = [
        Edge(source=str(source), dest=str(dest), lines=("x" * width,) if width else (), both_ways=both_ways)
        for source, dest, width, both_ways in drawn
    ]
    layout = lay_out(nodes, edges, downwards=downwards)
    placed = list(areas(layout, nodes, edges))
    assert not [pair for pair in combinations(placed, 2) if overlaps(*pair)]
    points = [(point, line.label) for line in layout.lines for point in along(line.points)]
    for centre, size in placed:
        assert not [point for point, own in points if own != centre and overlaps((centre, size), (point, Size(0, 0)))]
    for (x, y), size in placed:
        assert size.width / 2 <= x <= layout.size.width - size.width / 2
        assert size.height / 2 <= y <= layout.size.height - size.height / 2


def test_a_line_goes_from_one_box_to_the_other_with_a_head_at_each_end_that_has_one() -> None:
    nodes = {"a": Node(lines=("aa",)), "b": Node(lines=("bb",))}
    ways = [Edge(source="a", dest="b", lines=("x",)), Edge(source="b", dest="a", lines=("y",), both_ways=True)]
    layout = lay_out(nodes, ways)
    one, both = layout.lines
    assert [len(one.heads), len(both.heads)] == [1, 2]
    half = nodes["a"].size.width / 2
    right_of_a, left_of_b = layout.boxes["a"][0] + half, layout.boxes["b"][0] - half
    tips = [tip_x for line in (one, both) for _, (tip_x, _) in line.heads]
    assert tips == [pytest.approx(side, abs=2) for side in (left_of_b, right_of_a, left_of_b)]
    assert one.points[0][0] == pytest.approx(right_of_a, abs=2)


@given(tag=any_texts, key=any_texts, name=any_texts, region=any_texts)
def test_hostile_names_are_text_and_nothing_else(tag: str, key: str, name: str, region: str) -> None:
    plain = draw_svg(Topology.from_sites([site("A", pushed("n", "B", key="k"), region="r"), site("B")]))
    hostile = draw_svg(Topology.from_sites([site("A", pushed(name, tag, key=key), region=region), site(tag)]))
    known = {element.tag for element in ET.fromstring(plain).iter()}
    assert {element.tag for element in ET.fromstring(hostile).iter()} <= known
    attributes = {key for element in ET.fromstring(hostile).iter() for key in element.attrib}
    assert not [attribute for attribute in attributes if attribute.startswith("on") or "href" in attribute]


def test_what_is_long_is_cut_and_whole_in_the_title() -> None:
    key = "orders.europe.germany.hamburg.wholesale.#"
    drawn = draw_svg(Topology.from_sites([site("A", pushed("x", "B", key=key))]))
    [cut] = [text for text in texts(drawn) if text.startswith("x orders")]
    assert len(cut) == MAX_CELLS
    assert cut.endswith("…")
    assert any(f"key {key}" in title for title in titles(drawn))


def test_routes_alike_are_one_line_with_all_keys_as_far_as_there_is_room() -> None:
    keys = [f"k{number}" for number in range(MAX_LABELS + 2)]
    drawn = draw_svg(Topology.from_sites([site("A", *(pushed("x", "B", key=key) for key in keys))]))
    assert drawn.count('<g class="line') == 1
    assert [text for text in texts(drawn) if text.startswith("x ")] == [f"x {key}" for key in keys[:MAX_LABELS]]
    assert "and 2 more" in texts(drawn)
    assert all(any(f"key {key}" in title for title in titles(drawn)) for key in keys)


def test_of_more_lines_than_can_be_labelled_titles_tell_the_keys() -> None:
    leaves = [f"leaf-{number}" for number in range(MAX_LABELLED + 1)]
    hub = site("hub", *(pushed("x", leaf, key=f"k.{leaf}") for leaf in leaves))
    drawn = draw_svg(Topology.from_sites([hub]))
    assert {"hub", *leaves} <= set(texts(drawn))
    assert not [text for text in texts(drawn) if text.startswith("x ")]
    assert all(any(f"key k.{leaf}," in title for title in titles(drawn)) for leaf in leaves)


def test_a_state_that_isnt_as_it_should_be_is_said_in_words() -> None:
    paused = pushed("x", "B", key="k")
    here = site("A", paused, pushed("x", "B", key="up"))
    drawn = draw_svg(
        Topology.from_sites([dataclasses.replace(here, route_states={**here.route_states, paused.name: "Paused"})])
    )
    assert {"x k (paused)", "x up"} <= set(texts(drawn))


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_colour_can_be_read_on_paper_and_in_boxes(palette: dict[Colour, str]) -> None:
    for behind in (Colour.PAPER, Colour.BOX):
        for colour in set(Colour) - {Colour.PAPER, Colour.BOX, Colour.EDGE}:
            lighter, darker = sorted((luminance(palette[behind]), luminance(palette[colour])), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (behind, colour)


def test_one_file_has_both_schemes() -> None:
    drawn = draw_svg(Topology.from_sites([site("A", pushed("x", "B"))]))
    light, dark = drawn.split("@media (prefers-color-scheme: dark)")
    assert all(f".{colour}{{color:{value}}}" in light for colour, value in LIGHT.items())
    assert all(f".{colour}{{color:{value}}}" in dark for colour, value in DARK.items())
