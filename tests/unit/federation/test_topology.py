"""What is found wrong with a topology, and how it is drawn."""

from collections.abc import Iterable
from itertools import pairwise, product
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.links.links import Bridge, Endpoint, Link
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.drawings import draw_svg, draw_text
from sluice.federation.map.findings import (
    ALWAYS_DUPLICATED,
    DUPLICATED_AFTER_WINDOW,
    Concern,
    MessageEffect,
    list_findings,
)
from sluice.federation.map.paths import find_common_key
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.matching.topics import covers

TYPES = {"x": ExchangeType.TOPIC, "other": ExchangeType.FANOUT, "direct": ExchangeType.DIRECT}
UP = {"to-B": LinkStatus(state=LinkState.OPERATIONAL)}
Join = tuple[str, str]


def link_to(peer: str) -> Link:
    return Link(name=f"to-{peer}", peer=peer, endpoints=(Endpoint(region="r", account="1", control_queue_url=peer),))


def push(dest: str, *, key: str = "#", src: str = "x", to: str = "x", **fields: Any) -> Bridge:
    name = f"{src}-{key}-{dest}" if key else f"{src}-{dest}"
    return Bridge(name=name, link=f"to-{dest}", src=src, dest=to, key=key, src_is_local=True, **fields)


def dynamic(dest: str, **fields: Any) -> Bridge:
    """As its source knows it."""
    return push(dest, key="", dynamic=True, **fields)


def sites_with(*bridges: tuple[str, Bridge], **fields: Any) -> Topology:
    """Sites with these routes of theirs, each pushed to the site that its link is named for."""
    tags = sorted({tag for source, bridge in bridges for tag in (source, bridge.link.removeprefix("to-"))})
    return Topology.from_sites(
        MappedSite(
            tag=tag,
            exchanges=TYPES,
            links=tuple({link_to(each.link.removeprefix("to-")) for source, each in bridges if source == tag}),
            bridges=tuple(each for source, each in bridges if source == tag),
            **fields,
        )
        for tag in tags
    )


def joined(joins: Iterable[Join], **fields: Any) -> Topology:
    joins = list(joins)
    tags = sorted({tag for join in joins for tag in join})
    return Topology.from_sites(
        MappedSite(
            tag=tag,
            exchanges=TYPES,
            links=tuple(link_to(dest) for source, dest in joins if source == tag),
            bridges=tuple(push(dest, **fields) for source, dest in joins if source == tag),
        )
        for tag in tags
    )


def both_ways(*joins: Join) -> list[Join]:
    return [way for one, other in joins for way in ((one, other), (other, one))]


def found(topology: Topology, concern: Concern) -> list[tuple[str, ...]]:
    return [finding.sites for finding in list_findings(topology) if finding.concern is concern]


def test_what_a_route_gives_another_key_goes_on_by_that_key() -> None:
    given_key = ("A", push("B", key="a.#", dest_key="b.c"))
    by_own, by_given = ("B", push("C", key="a.#")), ("B", push("C", key="b.#"))
    direct = ("A", push("C", key="a.#", dest_key="b.c"))
    assert found(sites_with(given_key, by_own, direct), Concern.MULTI_PATH) == []
    assert found(sites_with(given_key, by_given, direct), Concern.MULTI_PATH) == [("A", "C")]
    assert "a.# as b.c" in draw_text(sites_with(given_key))


def test_a_tree_both_ways_is_as_it_should_be() -> None:
    assert list_findings(joined(both_ways(("A", "B"), ("B", "C"), ("B", "D"), ("D", "E")))) == ()


def test_a_ring_both_ways_is_a_multi_path_between_all_its_sites() -> None:
    topology = joined(both_ways(("A", "B"), ("B", "C"), ("C", "A")))
    assert [finding.concern for finding in list_findings(topology)] == [Concern.MULTI_PATH] * 6
    assert found(topology, Concern.MULTI_PATH) == [(a, b) for a in "ABC" for b in "ABC" if a != b]


def test_routes_one_way_and_a_ring_of_them_lose_and_double_nothing() -> None:
    assert list_findings(joined([("A", "B"), ("B", "C")])) == ()
    assert list_findings(joined([("A", "B"), ("B", "C"), ("C", "A")])) == ()


def test_a_ring_whose_routes_have_other_tags_than_their_sites_brings_all_back() -> None:
    topology = joined([("A", "B"), ("B", "C"), ("C", "A")], tag="other")
    assert found(topology, Concern.CYCLE) == [("A", "B", "C")]
    assert "A → B → C → A: what is published comes back" in draw_text(topology)
    assert found(joined([("A", "B"), ("B", "A")], tag="other"), Concern.CYCLE) == [("A", "B")]


def test_an_exclude_keeps_the_second_way_free() -> None:
    ring = [("A", "B"), ("A", "C"), ("C", "B")]
    assert found(joined(ring), Concern.MULTI_PATH) == [("A", "B")]
    assert list_findings(joined(ring, excludes=frozenset({"A"}))) == ()


def test_a_diamond_is_a_multi_path_and_no_cycle() -> None:
    topology = joined([("A", "B"), ("A", "C"), ("B", "D"), ("C", "D")])
    assert found(topology, Concern.CYCLE) == []
    assert found(topology, Concern.MULTI_PATH) == [("A", "D")]


def test_what_lies_behind_two_ways_is_not_named_again() -> None:
    topology = joined([("Z", "A"), ("A", "B"), ("A", "C"), ("B", "D"), ("C", "D"), ("D", "E")])
    assert found(topology, Concern.MULTI_PATH) == [("A", "D")]


def test_five_sites_with_a_ring_both_ways_have_its_second_ways_named_and_nothing_else() -> None:
    ring = both_ways(("A", "B"), ("B", "C"), ("C", "A"))
    topology = joined([*ring, *both_ways(("C", "D")), ("D", "E")])
    text = draw_text(topology)
    assert "! multi-path: A → B and A → C → B: twice, where one way is five minutes later" in text
    assert text.count("! ") == 6


@pytest.mark.parametrize(
    ("one", "other", "how"), [(True, True, "five minutes"), (True, False, "always"), (False, False, "always")]
)
def test_of_two_ways_fifo_queues_know_a_message_again_for_five_minutes(one: bool, other: bool, how: str) -> None:
    topology = sites_with(("A", push("B", key="a", fifo=one)), ("A", push("B", key="#", fifo=other)))
    [finding] = list_findings(topology)
    assert finding.effect is MessageEffect.DOUBLED
    assert finding.text.endswith(DUPLICATED_AFTER_WINDOW if how == "five minutes" else ALWAYS_DUPLICATED)
    assert {route.bridge.key for route in finding.routes} == {"a", "#"}


def test_dynamic_routes_deliver_once_in_any_mesh() -> None:
    mesh = [(a, dynamic(b, fifo=False)) for a in "ABC" for b in "ABC" if a != b]
    assert list_findings(sites_with(*mesh)) == ()
    own_tags = [(a, dynamic(b, tag="other")) for a in "ABC" for b in "ABC" if a != b]
    assert list_findings(sites_with(*own_tags)) == ()


def test_a_static_route_beside_dynamic_ones_is_a_second_way() -> None:
    line = [("A", dynamic("B")), ("B", dynamic("C"))]
    assert list_findings(sites_with(*line)) == ()
    assert found(sites_with(*line, ("A", push("C"))), Concern.MULTI_PATH) == [("A", "C")]
    assert found(sites_with(("A", dynamic("B")), ("A", push("B", key="a"))), Concern.MULTI_PATH) == [("A", "B")]


def test_what_goes_on_from_dynamic_routes_by_static_ones_is_a_second_way() -> None:
    fork = [("A", dynamic("B")), ("A", dynamic("C")), ("B", push("D")), ("C", push("D"))]
    assert found(sites_with(*fork), Concern.MULTI_PATH) == [("A", "D")]


def test_a_route_that_is_about_to_go_is_no_second_way() -> None:
    going = push("B", key="a")
    topology = sites_with(("A", push("B")), ("A", going), route_states={going.name: "Closing"}, link_statuses=UP)
    assert list_findings(topology) == ()


def test_a_line_longer_than_the_hops_allowed_loses_what_goes_all_along() -> None:
    tags = "ABCDEFGHIJ"
    line = list(pairwise(tags))
    assert list_findings(joined(line[:8])) == ()
    [finding] = list_findings(joined(line))
    assert (finding.concern, finding.effect, finding.sites) == (Concern.HOPS, MessageEffect.LOST, tuple(tags))
    assert list_findings(joined(line, max_hops=9)) == ()


def test_who_is_reached_by_another_way_lacks_nothing_for_the_hops() -> None:
    assert found(joined([("A", "B"), ("B", "C"), ("A", "C")], max_hops=1), Concern.HOPS) == []


def test_queue_routes_that_share_a_queue_are_no_two_ways() -> None:
    def of_queue(dest: str) -> Bridge:
        return Bridge(name=f"q-{dest}", link=f"to-{dest}", src="jobs", dest="x", src_is_queue=True, src_is_local=True)

    shared = [("A", of_queue("B")), ("A", of_queue("C")), ("B", push("D")), ("C", push("D"))]
    assert list_findings(sites_with(*shared)) == ()
    assert list_findings(sites_with(*shared, feeding_bindings=(Binding(exchange="x", queue="jobs", key="#"),))) == ()


def test_an_exchange_that_is_not_there_loses_what_comes() -> None:
    [finding] = list_findings(sites_with(("A", push("B", to="y"))))
    assert str(finding) == "missing exchange: B has no exchange y, which to-B/x-#-B goes to"


def test_a_pattern_at_a_direct_exchange_is_a_key_that_nothing_has() -> None:
    [finding] = list_findings(sites_with(("A", push("B", key="a.#", src="direct"))))
    assert str(finding).startswith("key out of reach: to-B/direct-a.#-B: direct at A is direct")
    assert list_findings(sites_with(("A", push("B", key="a.b", src="direct")))) == ()


def test_at_a_direct_exchange_patterns_meet_no_other_keys() -> None:
    ways = sites_with(("A", push("B", key="a", src="direct")), ("A", push("B", key="#", src="direct")))
    assert found(ways, Concern.MULTI_PATH) == []


def test_a_route_that_fails_by_itself_is_named_with_the_reason() -> None:
    route = push("B")
    topology = sites_with(("A", route), route_states={route.name: "Failed: no such queue"}, link_statuses=UP)
    [finding] = list_findings(topology)
    assert str(finding) == "failed route: A → B over to-B/x-#-B: Failed: no such queue"
    assert "Failed: no such queue" in draw_text(topology)
    assert "x # (failed)" in draw_svg(topology)


def test_a_pause_keeps_messages_and_is_no_finding() -> None:
    paused = MappedSite(
        tag="A", exchanges=TYPES, links=(link_to("B"),), bridges=(push("B"),), route_states={push("B").name: "Paused"}
    )
    assert list_findings(Topology.from_sites([paused])) == ()


def test_what_a_peer_said_of_a_route_is_old_once_its_link_is_down() -> None:
    route = push("B")
    down = {"to-B": LinkStatus(state=LinkState.WAITING)}
    [shown] = sites_with(("A", route), route_states={route.name: "Operational"}, link_statuses=down).routes
    assert shown.state == "Waiting"


def two_ways(one: str, other: str) -> Topology:
    return Topology.from_sites(
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
    assert f"A → B by to-B/x-{min(one, other)}-B and by to-B/x-{max(one, other)}-B" in draw_text(topology)


@pytest.mark.parametrize(("one", "other"), [("a.#", "b.#"), ("a", "b"), ("*", "*.*")])
def test_two_routes_that_no_message_takes_both_are_none(one: str, other: str) -> None:
    assert found(two_ways(one, other), Concern.MULTI_PATH) == []
    both = ("A", push("B", key=one)), ("A", push("B", key=other))
    assert list_findings(sites_with(*both, ("B", push("C", key="#")))) == ()  # which takes either, and not at once


def test_three_routes_are_two_ways_only_for_a_key_that_all_of_them_take() -> None:
    by_hub = ("A", push("B", key="a.#")), ("B", push("C", key="#.b")), ("A", push("C", key="*.*.*"))
    assert found(sites_with(*by_hub), Concern.MULTI_PATH) == [("A", "C")]  # as a.x.b
    too_short = *by_hub[:2], ("A", push("C", key="*"))
    assert list_findings(sites_with(*too_short)) == ()


def test_opposite_queue_routes_that_bindings_close_leave_dead_letters() -> None:
    def site(tag: str, peer: str, *feeds: Binding) -> MappedSite:
        bridge = Bridge(name="q", link=f"to-{peer}", src="jobs", dest="x", src_is_queue=True, src_is_local=True)
        return MappedSite(tag=tag, exchanges=TYPES, links=(link_to(peer),), bridges=(bridge,), feeding_bindings=feeds)

    feed = Binding(exchange="x", queue="jobs", key="#")
    closed = Topology.from_sites([site("A", "B", feed), site("B", "A", feed)])
    assert {finding.effect for finding in list_findings(closed)} == {MessageEffect.LOST}
    assert found(closed, Concern.CYCLE) == [("A", "B", "A"), ("B", "A", "B")]
    # What is sent to the one's queue comes back to the other's, and may not go round again.
    half = Topology.from_sites([site("A", "B", feed), site("B", "A")])
    assert [finding.text for finding in list_findings(half)] == [
        "B → A → B: messages on this path become dead letters at the queue jobs at A"
    ]
    assert list_findings(Topology.from_sites([site("A", "B"), site("B", "A")])) == ()


def test_a_dynamic_route_between_exchanges_of_two_types_is_named_and_a_static_one_is_as_it_may_be() -> None:
    def pair(bridge: Bridge) -> Topology:
        there = MappedSite(tag="B", exchanges={"x": ExchangeType.FANOUT, "other": ExchangeType.FANOUT})
        return Topology.from_sites(
            [MappedSite(tag="A", exchanges=TYPES, links=(link_to("B"),), bridges=(bridge,)), there]
        )

    assert found(pair(dynamic("B")), Concern.TYPE_MISMATCH) == [("A", "B")]
    assert list_findings(pair(push("B", to="other"))) == ()


def test_a_link_that_is_refused_lacks_permission() -> None:
    denied = LinkStatus(state=LinkState.FAILED, last_error="AccessDenied")
    site = MappedSite(
        tag="A", exchanges=TYPES, links=(link_to("B"),), link_statuses={"to-B": denied}, bridges=(push("B"),)
    )
    (finding,) = list_findings(Topology.from_sites([site]))
    assert str(finding) == "missing permission: A at B over to-B: AccessDenied"


def test_a_pull_is_drawn_from_its_source() -> None:
    pull = Bridge(name="p", link="to-B", src="x", dest="x", key="a.#")
    site = MappedSite(
        tag="A",
        region="eu-west-1",
        exchanges=TYPES,
        links=(link_to("B"),),
        bridges=(pull,),
        route_states={"p": "Paused"},
    )
    assert (
        draw_text(Topology.from_sites([site]))
        == "A eu-west-1\nB (not reached)\n  x ─ a.# ──▶ A x  to-B/p, static, Paused\n"
    )


def test_a_site_that_is_linked_to_itself_is_not_believed() -> None:
    site = MappedSite(tag="A", links=(link_to("A"),), bridges=(push("A"),))
    assert Topology.from_sites([site]).routes == ()


def test_the_order_in_which_sites_are_walked_does_not_matter() -> None:
    sites = list(joined(both_ways(("A", "B"), ("B", "C"), ("C", "A"))).sites.values())
    assert draw_text(Topology.from_sites(sites)) == draw_text(Topology.from_sites(reversed(sites)))
    assert draw_svg(Topology.from_sites(sites)) == draw_svg(Topology.from_sites(reversed(sites)))


def test_the_svg_has_every_site_route_and_finding() -> None:
    topology = joined(both_ways(("A", "B"), ("B", "C"), ("C", "A")), key='<&\x00">.#')
    drawn = ET.fromstring(draw_svg(topology))
    texts = [element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    titles = "\n".join(element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}title"))
    assert {"A", "B", "C"} <= set(texts)
    assert texts.count('x <&\ufffd">.# (waiting)') == 3  # a line for both ways
    assert all(f"{a} x to {b} x, key " in titles for a, b in both_ways(("A", "B"), ("B", "C"), ("C", "A")))
    assert sum(text.startswith("⚠ ") for text in texts) == len(list_findings(topology)) == 6


def kinds() -> Topology:
    queue = Bridge(name="q", link="to-B", src='jobs "1"', dest="x", src_is_queue=True, src_is_local=True)
    return sites_with(("A", push("B", key="a.#")), ("A", dynamic("B", src="other", to="other")), ("A", queue))


def test_kinds_of_routes_are_told_apart_in_every_drawing() -> None:
    text, svg = draw_text(kinds()), draw_svg(kinds())
    assert all(arrow in text for arrow in ("──▶", "┄┄▶", "══▶"))
    assert all(kind in text for kind in (", static,", ", dynamic,", ", queue,"))
    assert all(f">{kind} route<" in svg for kind in ("static", "dynamic", "queue"))


def test_no_sites_are_drawn_as_nothing() -> None:
    assert draw_text(Topology.from_sites([])) == "\n"
    ET.fromstring(draw_svg(Topology.from_sites([])))


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


@given(st.lists(st.lists(st.sampled_from("ab*#"), min_size=1, max_size=3).map(".".join), min_size=1, max_size=3))
def test_a_key_of_several_patterns_matches_all_of_them_and_is_found_if_there_is_one(patterns: list[str]) -> None:
    def matching(key: str) -> bool:
        return all(covers(pattern, key) for pattern in patterns)

    key = find_common_key(patterns)
    if key is None:
        words = [".".join(each) for length in range(1, 7) for each in product("abx", repeat=length)]
        assert not any(map(matching, words))
    else:
        assert matching(key)


def test_fifty_sites_are_looked_through_at_once() -> None:
    tags = [f"S{number:02}" for number in range(50)]
    ring = both_ways(*zip(tags, [*tags[1:], tags[0]], strict=True))
    assert len(found(joined(ring, max_hops=49), Concern.MULTI_PATH)) == 50 * 2
    few_hops = joined(ring)
    assert (found(few_hops, Concern.MULTI_PATH), len(found(few_hops, Concern.HOPS))) == ([], 100)
