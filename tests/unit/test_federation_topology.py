"""What is found wrong with a topology, and how it is drawn."""

from collections.abc import Iterable
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.drawings import as_svg, as_text
from sluice.federation.map.topology import Concern, MappedSite, Topology
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType

TYPES = {"x": ExchangeType.TOPIC, "other": ExchangeType.FANOUT}
Join = tuple[str, str]


def link_to(peer: str) -> Link:
    return Link(name=f"to-{peer}", peer=peer, endpoints=(Endpoint(region="r", account="1", control_queue_url=peer),))


def push(dest: str, *, key: str = "#", src: str = "x", to: str = "x") -> Bridge:
    return Bridge(name=f"{src}-{key}-{dest}", link=f"to-{dest}", src=src, dest=to, key=key, src_is_local=True)


def joined(joins: Iterable[Join], *, key: str = "#") -> Topology:
    joins = list(joins)
    tags = sorted({tag for join in joins for tag in join})
    return Topology.of(
        MappedSite(
            tag=tag,
            exchanges=TYPES,
            links=tuple(link_to(dest) for source, dest in joins if source == tag),
            bridges=tuple(push(dest, key=key) for source, dest in joins if source == tag),
        )
        for tag in tags
    )


def both_ways(*joins: Join) -> list[Join]:
    return [way for one, other in joins for way in ((one, other), (other, one))]


def found(topology: Topology, concern: Concern) -> list[tuple[str, ...]]:
    return [finding.sites for finding in topology.findings() if finding.concern is concern]


def test_a_tree_both_ways_is_as_it_should_be() -> None:
    assert joined(both_ways(("A", "B"), ("B", "C"), ("B", "D"), ("D", "E"))).findings() == ()


def test_a_ring_is_a_cycle_and_a_multi_path() -> None:
    topology = joined(both_ways(("A", "B"), ("B", "C"), ("C", "A")))
    assert found(topology, Concern.CYCLE) == [("A", "B", "C")]
    assert found(topology, Concern.MULTI_PATH) == [(a, b) for a in "ABC" for b in "ABC" if a != b]
    assert found(topology, Concern.NO_REVERSE) == []


def test_a_ring_one_way_is_a_cycle_and_no_multi_path() -> None:
    topology = joined([("A", "B"), ("B", "C"), ("C", "A")])
    assert found(topology, Concern.CYCLE) == [("A", "B", "C")]
    assert found(topology, Concern.MULTI_PATH) == []
    assert found(topology, Concern.NO_REVERSE) == [("A", "B"), ("B", "C"), ("C", "A")]


def test_a_diamond_is_a_multi_path_and_no_cycle() -> None:
    topology = joined([("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")])
    assert found(topology, Concern.CYCLE) == []
    assert found(topology, Concern.MULTI_PATH) == [("A", "D")]


def test_what_lies_behind_two_ways_is_not_named_again() -> None:
    topology = joined([("Z", "A"), ("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("D", "E")])
    assert found(topology, Concern.MULTI_PATH) == [("A", "D")]


def test_five_sites_with_a_cycle_a_multi_path_and_a_missing_reverse_have_each_named() -> None:
    ring = both_ways(("A", "B"), ("B", "C"), ("C", "A"))
    topology = joined([*ring, *both_ways(("C", "D")), ("D", "E")])
    text = as_text(topology)
    assert "! cycle: A → B → C → A" in text
    assert "! multi-path: A → B and A → C → B" in text
    assert "! missing reverse route: D → E, and nothing back" in text


def two_ways(one: str, other: str) -> Topology:
    return Topology.of(
        [
            MappedSite(
                tag="A", exchanges=TYPES, links=(link_to("B"),), bridges=(push("B", key=one), push("B", key=other))
            )
        ]
    )


@pytest.mark.parametrize(("one", "other"), [("a.#", "#.b"), ("a", "*"), ("a.*", "*.#")])
def test_two_routes_for_one_key_are_a_multi_path(one: str, other: str) -> None:
    topology = two_ways(one, other)
    assert found(topology, Concern.MULTI_PATH) == [("A", "B")]
    assert f"A → B by to-B/x-{min(one, other)}-B and by to-B/x-{max(one, other)}-B" in as_text(topology)


@pytest.mark.parametrize(("one", "other"), [("a.#", "b.#"), ("a", "b"), ("*", "*.*")])
def test_two_routes_that_no_message_takes_both_are_none(one: str, other: str) -> None:
    assert found(two_ways(one, other), Concern.MULTI_PATH) == []


def test_opposite_queue_routes_are_a_cycle_where_bindings_close_it() -> None:
    def site(tag: str, peer: str, *feeds: Binding) -> MappedSite:
        bridge = Bridge(name="q", link=f"to-{peer}", src="jobs", dest="x", src_is_queue=True, src_is_local=True)
        return MappedSite(tag=tag, exchanges=TYPES, links=(link_to(peer),), bridges=(bridge,), feeds=feeds)

    feed = Binding(exchange="x", queue="jobs", key="#")
    closed = Topology.of([site("A", "B", feed), site("B", "A", feed)])
    assert found(closed, Concern.CYCLE) == [("A", "B")]
    assert Topology.of([site("A", "B", feed), site("B", "A")]).findings() == ()


def test_a_route_between_exchanges_of_two_types_is_named() -> None:
    sites = [
        MappedSite(tag="A", exchanges=TYPES, links=(link_to("B"),), bridges=(push("B", to="other"),)),
        MappedSite(tag="B", exchanges=TYPES),
    ]
    assert found(Topology.of(sites), Concern.TYPE_MISMATCH) == [("A", "B")]


def test_a_link_that_is_refused_lacks_permission() -> None:
    denied = LinkStatus(state=LinkState.FAILED, last_error="AccessDenied")
    site = MappedSite(tag="A", links=(link_to("B"),), statuses={"to-B": denied})
    (finding,) = Topology.of([site]).findings()
    assert str(finding) == "missing permission: A at B over to-B: AccessDenied"


def test_a_pull_is_drawn_from_its_source() -> None:
    pull = Bridge(name="p", link="to-B", src="x", dest="x", key="a.#", paused=True)
    topology = Topology.of([MappedSite(tag="A", region="eu-west-1", links=(link_to("B"),), bridges=(pull,))])
    assert as_text(topology) == (
        "A eu-west-1\nB (not reached)\n  x ─ a.# ──▶ A x  to-B/p, paused\n\n"
        "! missing reverse route: B → A, and nothing back\n"
    )


def test_a_site_that_is_linked_to_itself_is_not_believed() -> None:
    site = MappedSite(tag="A", links=(link_to("A"),), bridges=(push("A"),))
    assert Topology.of([site]).routes == ()


def test_the_order_in_which_sites_are_walked_does_not_matter() -> None:
    sites = list(joined(both_ways(("A", "B"), ("B", "C"), ("C", "A"))).sites.values())
    assert as_text(Topology.of(sites)) == as_text(Topology.of(reversed(sites)))
    assert as_svg(Topology.of(sites)) == as_svg(Topology.of(reversed(sites)))


def test_the_svg_has_every_site_route_and_finding() -> None:
    topology = joined(both_ways(("A", "B"), ("B", "C"), ("C", "A")), key='<&\x00">.#')
    drawn = ET.fromstring(as_svg(topology))
    texts = [element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A", "B", "C"} <= set(texts)
    assert texts.count('x <&\ufffd">.#') == 6
    assert sum(text.startswith("⚠ ") for text in texts) == len(topology.findings()) == 7


def test_no_sites_are_drawn_as_nothing() -> None:
    assert as_text(Topology.of([])) == "\n"
    ET.fromstring(as_svg(Topology.of([])))


JOINS = st.lists(
    st.tuples(st.sampled_from("ABCDE"), st.sampled_from("ABCDE")).filter(lambda join: join[0] != join[1]),
    unique=True,
    max_size=12,
)


def simple_ways(joins: list[Join], way: tuple[str, ...], dest: str) -> list[tuple[str, ...]]:
    """By trying them all."""
    if way[-1] == dest:
        return [way]
    onward = [to for source, to in joins if source == way[-1] and to not in way]
    return [found for to in onward for found in simple_ways(joins, (*way, to), dest)]


@given(JOINS)
def test_a_multi_path_is_named_exactly_where_there_is_one(joins: list[Join]) -> None:
    pairs = {(a, b) for a in "ABCDE" for b in "ABCDE" if a != b and len(simple_ways(joins, (a,), b)) > 1}
    named = set(found(joined(joins), Concern.MULTI_PATH))
    assert named <= pairs
    assert bool(named) == bool(pairs)


@given(JOINS)
def test_a_cycle_is_named_exactly_where_three_sites_or_more_form_one(joins: list[Join]) -> None:
    rings = {frozenset(way) for a, b in joins for way in simple_ways(joins, (b,), a) if len(way) > 2}
    named = {frozenset(sites) for sites in found(joined(joins), Concern.CYCLE)}
    assert named <= rings
    assert bool(named) == bool(rings)


def test_fifty_sites_are_looked_through_at_once() -> None:
    tags = [f"S{number:02}" for number in range(50)]
    topology = joined(both_ways(*zip(tags, [*tags[1:], tags[0]], strict=True)))
    assert found(topology, Concern.CYCLE) == [tuple(tags)]
    assert len(found(topology, Concern.MULTI_PATH)) == 50 * 49
