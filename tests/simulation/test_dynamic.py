"""Dynamic routes in random topologies, with losses: when it settles, all is as the topology has it."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, pairwise

import pytest

from sluice.federation.dynamic.ops import BindingAdvertisement, BindingAdvertisements
from sluice.federation.dynamic.paths import choose_bridges_in_use, collect_advertised_bindings, list_paths
from sluice.federation.dynamic.steps import set_local_bindings
from tests.many_cases import some_of
from tests.simulation.fabric import HEARTBEAT_MS, Edge, Fabric, Flight

SEEDS = int(os.environ.get("SLUICE_SIMULATION_SEEDS", "30"))  # make test-slow runs 2,000
FIRST_SEED = int(os.environ.get("SLUICE_SIMULATION_FIRST_SEED", "0"))
GROUPS = 20
MAX_STEPS = 20_000  # in which all copies come, once nothing changes any more

TAGS = ["SITE1", "SITE10", "SITE", "A", "AB", "B", "a", "Z-1"]  # some are beginnings of others
KEYS = ["", "k", "k.l", "other"]


def chain(tags: list[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    yield from pairwise(tags)


def tree(tags: list[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    for number, tag in enumerate(tags[1:], 1):
        yield chance.choice(tags[:number]), tag


def ring(tags: list[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    yield from chain(tags, chance)
    if len(tags) > 2:
        yield tags[-1], tags[0]


def mesh(tags: list[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    for number, tag in enumerate(tags[:5]):
        yield from ((tag, other) for other in tags[:5][number + 1 :])
    yield from ((chance.choice(tags[:5]), tag) for tag in tags[5:])


def anything(tags: list[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    pairs = [(one, other) for one in tags for other in tags if one != other]
    yield from chance.sample(pairs, min(len(pairs), chance.randint(1, 2 * len(tags))))


SHAPES: list[Callable[[list[str], random.Random], Iterator[tuple[str, str]]]] = [chain, tree, ring, mesh, anything]


def fabric(seed: int) -> Fabric:
    chance = random.Random(seed)
    tags = chance.sample(TAGS, chance.randint(2, len(TAGS)))
    made = Fabric(tags=tags, chance=chance, as_json=seed % 4 == 0)
    shape = chance.choice(SHAPES)
    both_ways = chance.random() < 0.6
    own_tags = chance.random() < 0.2
    few_hops = shape in {chain, tree} and chance.random() < 0.5
    pairs = list(dict.fromkeys(shape(tags, chance)))
    pairs += [(other, one) for one, other in pairs if both_ways and (other, one) not in pairs]
    edges = [
        Edge(
            dest=one,
            source=other,
            number=number,
            max_hops=chance.randint(1, 4) if few_hops else 8,
            tag=f"tag-{len(pairs)}-{place}" if own_tags and chance.random() < 0.5 else None,
        )
        for place, (one, other) in enumerate(pairs)
        for number in range(1 + (chance.random() < 0.1))
    ]
    for edge in edges:
        if chance.random() < 0.5:
            bind_something(made)
        made.connect(edge)
    return made


def bind_something(made: Fabric) -> None:
    chance = made.chance
    site, key, queue = chance.choice(made.tags), chance.choice(KEYS), chance.choice(["q0", "q1"])
    (made.bind if chance.random() < 0.6 else made.unbind)(site, key, queue)


def turn_something(made: Fabric) -> None:
    name = made.chance.choice(sorted(made.edges))
    made.turn(name, up=name in made.down)


def replace_something(made: Fabric) -> None:
    edge = made.edges[made.chance.choice(sorted(made.edges))]
    made.disconnect(edge.name)
    if made.chance.random() < 0.8:
        made.connect(edge)


def trouble(made: Fabric) -> None:
    """Whatever happens."""
    chance = made.chance
    for _ in range(chance.randint(5, 40)):
        what = chance.random()
        if what < 0.4:
            bind_something(made)
        elif what < 0.6 and made.edges:
            turn_something(made)
        elif what < 0.65 and made.edges:
            replace_something(made)
        elif what < 0.7:
            made.restart(chance.choice(made.tags))
        elif what < 0.72:
            made.delete(chance.choice(made.tags))
        elif what < 0.75:
            made.beat()
        for _ in range(chance.randint(0, 12)):
            made.deliver(loss=0.1, repeat=0.05, reorder=0.1)


def run(seed: int) -> Fabric:
    made = fabric(seed)
    trouble(made)
    if made.chance.random() < 0.7:
        for name in sorted(made.down):
            made.turn(name, up=True)
    made.settle()
    made.check()
    return made


@pytest.mark.parametrize("group", range(GROUPS))
def test_when_it_settles_all_is_as_the_topology_has_it(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"SLUICE_SIMULATION_FIRST_SEED={seed} SLUICE_SIMULATION_SEEDS=1: {error}") from error


# 79: of two bridges between the same sites one allowed too few hops, and was chosen by its name.
# 230: a way to a site behind a link that was down never became ready, and the former one sent everything once more.
@pytest.mark.parametrize("seed", [79, 230])
def test_what_has_failed_once_does_not_fail_again(seed: int) -> None:
    run(seed)


# Named


def wanted(made: Fabric, site: str, name: str) -> BindingAdvertisements:
    """What the queue of a served bridge is bound by."""
    routes = made.sites[site]
    return collect_advertised_bindings(routes, name, choose_bridges_in_use(routes))


def connected(*pairs: tuple[str, str], tags: str | list[str]) -> Fabric:
    """Bridges by (dest, source), settled."""
    made = Fabric(tags=list(tags))
    for dest, source in pairs:
        made.connect(Edge(dest=dest, source=source))
    made.settle()
    return made


def both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for one, other in pairs for each in ((one, other), (other, one))]


def test_after_one_end_of_a_fork_unbinds_the_other_still_gets() -> None:
    made = connected(("A", "Z"), ("M", "A"), ("C", "M"), ("E", "M"), tags="ZAMCE")
    made.bind("C", "k")
    made.bind("E", "k")
    made.settle()
    assert made.publish("Z", "k") == {"C": 1, "E": 1}
    made.unbind("C", "k")
    made.settle()
    assert made.publish("Z", "k") == {"E": 1}
    made.unbind("E", "k")
    made.settle()
    assert not any(wanted(made, tag, name) for tag, routes in made.sites.items() for name in routes.served)


def test_headers_bindings_made_before_the_route_reach_the_far_end_with_their_arguments() -> None:
    made = Fabric(tags=["D", "M", "S"])
    wants = {
        BindingAdvertisement.from_binding("", {"x-match": "all", "n": 1}),
        BindingAdvertisement.from_binding("", {"x-match": "any", "n": 1.0, "there": None}),
    }
    made.happen("D", set_local_bindings(frozenset(wants)))
    made.connect(Edge(dest="D", source="M"))
    made.connect(Edge(dest="M", source="S"))
    made.settle()
    assert wanted(made, "S", "M-from-S-0@M") == wants


def test_tags_that_begin_like_others_are_other_sites() -> None:
    made = connected(*both_ways([("SITE1", "SITE10"), ("SITE10", "SITE")]), tags=["SITE", "SITE1", "SITE10"])
    for tag in made.tags:
        made.bind(tag, "k")
    made.settle()
    for tag in made.tags:
        assert made.publish(tag, "k") == dict.fromkeys(made.tags, 1)


@pytest.mark.parametrize("sites", [3, 5, 8])
def test_in_a_mesh_both_ways_every_site_gets_one(sites: int) -> None:
    tags = "ABCDEFGH"[:sites]
    made = connected(*both_ways(combinations(tags, 2)), tags=tags)
    for tag in tags:
        made.bind(tag, "k")
    made.settle()
    for tag in tags:
        assert made.publish(tag, "k") == dict.fromkeys(tags, 1)


@pytest.mark.parametrize("one_way", [True, False])
def test_in_a_ring_of_four_every_site_gets_one(one_way: bool) -> None:
    pairs = list(pairwise("ABCDA"))
    made = connected(*(pairs if one_way else both_ways(pairs)), tags="ABCD")
    for tag in "ABCD":
        made.bind(tag, "k")
    made.settle()
    for tag in "ABCD":
        assert made.publish(tag, "k") == dict.fromkeys("ABCD", 1)


def test_when_a_link_goes_down_another_way_takes_over_and_gives_back() -> None:
    made = connected(*both_ways(combinations("ABC", 2)), tags="ABC")
    for tag in "ABC":
        made.bind(tag, "k")
    made.settle()
    made.turn("C-from-A-0", up=False)
    made.settle()
    assert made.publish("A", "k") == {"A": 1, "B": 1, "C": 1}
    assert BindingAdvertisement("k") not in wanted(made, "A", "C-from-A-0@C")
    made.turn("C-from-A-0", up=True)
    made.settle()
    assert made.publish("A", "k") == {"A": 1, "B": 1, "C": 1}
    assert BindingAdvertisement("k") in wanted(made, "A", "C-from-A-0@C")


@pytest.mark.parametrize("seed", some_of(range(60), every=4))
def test_while_ways_change_each_gets_each_message_once_however_long_it_is_under_way(seed: int) -> None:
    """Copies lie in bridge queues while links go down and up, whatever sites have learned of that, and what is lost."""
    chance = random.Random(seed)
    tags = chance.sample(TAGS, chance.randint(3, 6))
    pairs = list(chance.choice([ring, mesh])(tags, chance))
    made = connected(*both_ways(pairs), tags=tags)
    made.chance = chance
    for tag in tags:
        made.bind(tag, "k")
    made.settle()
    lying: list[tuple[int, str | None, Flight]] = []  # a message's number, the bridge and the copy
    got: dict[int, Counter[str]] = {}

    def come() -> None:
        """One copy comes, whose link is up."""
        places = [place for place, (_, edge, _) in enumerate(lying) if edge not in made.down]
        if places:
            number, _, flight = lying.pop(chance.choice(places))
            got[number] += made.getting(flight)
            lying.extend((number, edge, on) for edge, on in made.sent_on(flight))

    for number in range(60):
        if chance.random() < 0.2:
            turn_something(made)
        got[number] = Counter()
        lying.append((number, None, Flight(chance.choice(tags), "k")))
        for _ in range(chance.randint(0, 6)):
            come()
        for _ in range(chance.randint(0, 6)):
            made.deliver(loss=0.1)
    for name in sorted(made.down):
        made.turn(name, up=True)
    made.settle()
    for _ in range(MAX_STEPS):
        come()
    assert not lying
    assert [number for number, sites in got.items() if sites != dict.fromkeys(tags, 1)] == []


def test_the_only_link_stays_bound_while_it_is_down_and_learns_later_of_what_has_changed() -> None:
    made = connected(("D", "S"), tags="DS")
    made.bind("D", "old")
    made.settle()
    made.turn("D-from-S-0", up=False)
    made.bind("D", "new")
    made.settle()
    assert wanted(made, "S", "D-from-S-0@D") == {BindingAdvertisement("old")}
    made.turn("D-from-S-0", up=True)
    made.settle()
    assert wanted(made, "S", "D-from-S-0@D") == {BindingAdvertisement("old"), BindingAdvertisement("new")}


def test_what_a_site_that_is_gone_for_good_wanted_expires_upstream_and_nothing_else_does() -> None:
    made = Fabric(tags=list("ABCD"), expires_ms=10 * HEARTBEAT_MS)
    for dest, source in [("B", "A"), ("C", "B"), ("D", "B")]:
        made.connect(Edge(dest=dest, source=source))
    made.bind("C", "k")
    made.bind("D", "k")
    made.settle()
    made.turn("C-from-B-0", up=False)
    made.settle()
    assert {way.origin for way in list_paths(made.sites["A"])} == {"B", "C", "D"}
    for _ in range(10):
        made.beat()
    made.settle()
    assert {way.origin for way in list_paths(made.sites["A"])} == {"B", "D"}
    assert made.publish("A", "k") == {"D": 1}
    made.turn("C-from-B-0", up=True)
    made.settle()
    assert made.publish("A", "k") == {"C": 1, "D": 1}


def test_of_two_bridges_to_one_site_the_one_that_allows_more_hops_is_active() -> None:
    made = connected(("M", "S"), tags="DMS")
    made.connect(Edge(dest="D", source="M", number=0, max_hops=1))
    made.connect(Edge(dest="D", source="M", number=1, max_hops=4))
    made.bind("D", "k")
    made.settle()
    assert made.publish("S", "k") == {"D": 1}
    assert wanted(made, "M", "D-from-M-0@D") == set()


def test_a_site_behind_a_link_that_is_down_lets_the_others_get_one() -> None:
    made = connected(("B", "A"), ("C", "B"), ("D", "C"), tags="ABCD")
    made.connect(Edge(dest="B", source="A", number=1))
    for tag in "ABCD":
        made.bind(tag, "k")
    made.settle()
    for name, up in [("D-from-C-0", False), ("B-from-A-0", False), ("B-from-A-0", True)]:
        made.turn(name, up=up)
        made.settle()
        assert made.publish("A", "k") == ({"A": 1, "B": 1, "C": 1})
    made.turn("D-from-C-0", up=True)
    made.settle()
    assert made.publish("A", "k") == dict.fromkeys("ABCD", 1)


def test_in_a_tree_each_gets_its_own_and_goes_on_after_others_unbind() -> None:
    made = connected(("B2", "B3"), ("B1", "B2"), ("B0", "B1"), tags=["B0", "B1", "B2", "B3"])
    for tag in ["B0", "B1", "B2"]:
        made.bind(tag, "k")
        made.bind(tag, tag)
    made.settle()
    assert made.publish("B3", "k") == {"B0": 1, "B1": 1, "B2": 1}
    assert made.publish("B3", "B1") == {"B1": 1}
    made.unbind("B1", "k")
    made.settle()
    assert made.publish("B3", "k") == {"B0": 1, "B2": 1}


def test_without_losses_a_binding_is_active_hops_away_without_any_heartbeat() -> None:
    made = connected(("C", "B"), ("B", "A"), tags="ABC")
    made.ignored.clear()  # each end begins by asking or telling, and so some of it comes twice
    made.bind("C", "k")
    while made.deliver():
        pass
    assert made.publish("A", "k") == {"C": 1}
    assert not made.ignored
