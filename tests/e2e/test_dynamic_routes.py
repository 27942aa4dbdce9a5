"""Dynamic routes through the deployed functions: sites learn what others want and forward just that."""

import time
from itertools import pairwise
from typing import Any

import pytest

from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import AddExchange, CloseBridge, ListBindings, ListPaths, ShowSite, SweepSite
from tests.e2e.federated import FederatedSite
from tests.e2e.ways import Way

TEN = [f"Message {number}" for number in range(1, 11)]
COLOUR = {"colour": {"DataType": "String", "StringValue": "red"}}


def dynamic(dest: FederatedSite, src: FederatedSite, exchange: str) -> str:
    return dest.pull(src, exchange, dynamic=True)


def until_bound(site: FederatedSite, exchange: str, number: int, *, within_s: float = 120) -> None:
    """Until so many bindings are there, and exchange functions know."""
    deadline = time.monotonic() + within_s
    while len(found := site.ask(ListBindings(exchange=exchange)).bindings) != number:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    site.changes.note()


@pytest.mark.parametrize(
    ("exchange", "key", "arguments"),
    [
        pytest.param("amq.direct", "k", {}, marks=pytest.mark.slow),
        ("amq.topic", "k.#", {}),
        pytest.param("amq.fanout", "", {}, marks=pytest.mark.slow),
        ("amq.match", "all", {"x-match": "all", "colour": "red"}),
        pytest.param("amq.match", "any", {"x-match": "any", "colour": "red", "size": 3}, marks=pytest.mark.slow),
    ],
)
def test_what_is_bound_here_comes_from_there_until_it_is_unbound(
    b0: FederatedSite, b1: FederatedSite, exchange: str, key: str, arguments: dict[str, Any]
) -> None:
    before = b0.bound(exchange, key, **arguments)  # bound before the route is there
    dynamic(b0, b1, exchange)
    until_bound(b1, exchange, 1)
    b1.publish(exchange, "k", TEN, attributes=COLOUR)
    b1.publish(exchange, "other", ["not this"] if exchange != "amq.fanout" else [])
    assert b0.bodies(before, 10) == TEN
    b0.unbind(exchange, before, key)
    until_bound(b1, exchange, 0)


def test_between_exchanges_of_two_types_a_dynamic_route_fails_and_its_source_makes_nothing(
    b0: FederatedSite, b1: FederatedSite
) -> None:
    b0.ask(AddExchange(name="orders", type=ExchangeType.DIRECT))
    b1.ask(AddExchange(name="orders", type=ExchangeType.TOPIC))
    route = b0.begin_to_pull(b1, "orders", dynamic=True)
    b0.until(lambda site: any(bridge.name == route and bridge.state.startswith("Failed") for bridge in site.bridges))
    [shown] = [bridge for bridge in b0.ask(ShowSite()).bridges if bridge.name == route]
    assert shown.error == f"orders is topic at {b1.tag}, direct at {b0.tag}: a dynamic route needs one type"
    b1.until(lambda site: not site.bridges, within_s=120)


@pytest.mark.slow
def test_when_one_of_two_behind_a_fork_unbinds_the_other_still_gets_all(sites: list[FederatedSite]) -> None:
    """Z to A to C and E, both bound: what C wants no longer, E still does."""
    z, a, c, e = sites
    queues = [c.bound("amq.topic", "k"), e.bound("amq.topic", "k")]
    dynamic(a, z, "amq.topic")
    dynamic(c, a, "amq.topic")
    dynamic(e, a, "amq.topic")
    until_bound(a, "amq.topic", 2)
    until_bound(z, "amq.topic", 1)
    z.publish("amq.topic", "k", TEN)
    assert [site.bodies(queue, 10) for site, queue in zip((c, e), queues, strict=True)] == [TEN, TEN]
    c.unbind("amq.topic", queues[0], "k")
    until_bound(a, "amq.topic", 1)
    z.publish("amq.topic", "k", TEN)
    assert e.bodies(queues[1], 10) == TEN
    assert c.bodies(queues[0], 1, within_s=1) == []


@pytest.mark.slow
def test_along_a_line_each_gets_its_own(sites: list[FederatedSite]) -> None:
    queues = [site.bound("amq.topic", f"{place}.#") for place, site in enumerate(sites)]
    for nearer, farther in pairwise(sites):
        dynamic(nearer, farther, "amq.topic")
    until_bound(sites[3], "amq.topic", 4)
    for place in range(4):
        sites[3].publish("amq.topic", f"{place}.x", TEN)
    for site, queue in zip(sites, queues, strict=True):
        assert site.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_a_mesh_both_ways_delivers_each_message_once(sites: list[FederatedSite]) -> None:
    three = sites[:3]
    queues = [site.bound("amq.fanout") for site in three]
    for site in three:
        for peer in three:
            if site is not peer:
                dynamic(site, peer, "amq.fanout")
    for site in three:
        until_bound(site, "amq.fanout", 3)
    time.sleep(5)  # what is learned of each other's ways settles
    three[0].publish("amq.fanout", "", TEN)
    for site, queue in zip(three, queues, strict=True):
        assert site.bodies(queue, 10, quiet_s=3) == TEN


@pytest.mark.slow
def test_a_link_that_was_down_has_everything_and_the_new_binding_afterwards(
    b0: FederatedSite, b1: FederatedSite, way: Way
) -> None:
    twenty = [f"Message {number}" for number in range(20)]
    old = b0.bound("amq.topic", "old")
    dynamic(b0, b1, "amq.topic")
    until_bound(b1, "amq.topic", 1)
    way.cut()
    b1.publish("amq.topic", "old", twenty)
    new = b0.bound("amq.topic", "new")
    served = next(bridge.link for bridge in b1.ask(ShowSite()).bridges)
    b1.until_link(served, "Waiting", "Connecting")
    way.mend()
    assert b0.bodies(old, 20, within_s=120) == twenty
    for site in (b0, b1):
        site.until(lambda found: all(link.status.state == "Operational" for link in found.links), within_s=120)
        site.ask(SweepSite())
    until_bound(b1, "amq.topic", 2, within_s=90)
    b1.publish("amq.topic", "new", TEN)
    assert b0.bodies(new, 10) == TEN


def test_when_the_active_path_goes_the_other_takes_over(sites: list[FederatedSite]) -> None:
    """A to B, and A to C to B: the short way is active, the long one stands by."""
    a, b, c = sites[:3]
    queue = b.bound("amq.topic", "k")
    short = dynamic(b, a, "amq.topic")
    dynamic(b, c, "amq.topic")
    dynamic(c, a, "amq.topic")
    until_bound(c, "amq.topic", 1)
    until_bound(a, "amq.topic", 1)

    def ways() -> dict[tuple[str, ...], bool]:
        return {way.path: way.active for way in a.ask(ListPaths()).paths if way.origin == b.tag}

    deadline = time.monotonic() + 60
    while ways() != {(b.tag,): True, (c.tag, b.tag): False}:
        assert time.monotonic() < deadline, ways()
        time.sleep(0.5)
    a.publish("amq.topic", "k", TEN)
    assert b.bodies(queue, 10, quiet_s=3) == TEN
    b.ask(CloseBridge(name=short))
    a.until(lambda site: len(site.bridges) == 1, within_s=120)
    assert ways() == {(c.tag, b.tag): True}
    time.sleep(2)
    a.publish("amq.topic", "k", TEN)
    assert b.bodies(queue, 10, quiet_s=3) == TEN
