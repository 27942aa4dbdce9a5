"""Which links and bridges are refused, and what a bridge asks of a trace."""

import json

import pytest
from msgspec.structs import replace

from sluice.codec import decode, encode
from sluice.errors import BadRoute
from sluice.federation.links.links import (
    Bridge,
    Endpoint,
    Link,
    RouteKind,
    build_crossing,
    check_bridge,
    check_link,
    find_site_tags,
)
from sluice.federation.matching.metadata import Crossing
from sluice.splitting.filters.values import Filter


def endpoint(name: str) -> Endpoint:
    return Endpoint(region="eu-west-1", account="000000000001", control_queue_url=f"https://sqs/{name}")


LINK = Link(name="to-b", peer="B", endpoints=(endpoint("b1"), endpoint("b2")))
OTHER = Link(name="to-c", peer="C", endpoints=(endpoint("c"),))
STATIC = Bridge(name="one", link="to-b", src="amq.direct", dest="amq.fanout", key="my-key")
QUEUE = Bridge(name="two", link="to-b", src="jobs", dest="amq.direct", src_is_queue=True, sync=3, credit=7)
DYNAMIC = Bridge(name="three", link="to-b", src="amq.topic", dest="amq.topic", dynamic=True)


def test_a_link_to_another_site_is_taken() -> None:
    check_link(LINK, here="A", existing=[OTHER])


def test_two_links_to_one_peer_are_taken() -> None:
    check_link(replace(LINK, name="again"), here="A", existing=[LINK, OTHER])


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        (replace(LINK, peer="A"), "isn't linked to itself"),
        (replace(LINK, peer="a b"), "no site's tag"),
        (replace(LINK, endpoints=()), "0 endpoints"),
        (replace(LINK, endpoints=tuple(endpoint(str(number)) for number in range(9))), "9 endpoints"),
        (replace(LINK, external_id="id"), "external id"),
        (replace(LINK, name="to-c"), "link of this name"),
        (replace(LINK, peer="C"), "one tag is one site"),
        (replace(LINK, endpoints=OTHER.endpoints), "one tag is one site"),
    ],
)
def test_a_link_that_cannot_be_is_refused_with_the_reason(link: Link, reason: str) -> None:
    with pytest.raises(BadRoute, match=reason):
        check_link(link, here="A", existing=[OTHER])


@pytest.mark.parametrize(
    "bridge",
    [
        STATIC,
        QUEUE,
        DYNAMIC,
        replace(STATIC, src_is_local=True),
        replace(STATIC, dest_key="k" * 256),
        replace(QUEUE, dest_key="k"),
    ],
)
def test_a_bridge_of_each_kind_is_taken(bridge: Bridge) -> None:
    check_bridge(bridge, links=[LINK], existing=[])


def test_a_route_without_what_a_release_has_added_is_written_as_before() -> None:
    assert "dest_key" not in json.loads(encode(STATIC))
    assert decode(encode(replace(STATIC, dest_key="k")), Bridge, of="route").dest_key == "k"


def test_the_kind_of_a_route_is_where_its_messages_come_from() -> None:
    assert [b.kind for b in (STATIC, QUEUE, DYNAMIC)] == [RouteKind.STATIC, RouteKind.QUEUE, RouteKind.DYNAMIC]


@pytest.mark.parametrize(
    ("bridge", "reason"),
    [
        (replace(STATIC, link="nope"), "no such link"),
        (replace(DYNAMIC, src_is_local=True), "dynamic route is pulled"),
        (replace(QUEUE, dynamic=True), "queue route isn't dynamic"),
        (replace(DYNAMIC, dest="other"), "one name"),
        (replace(QUEUE, key="k"), "only a static"),
        (replace(DYNAMIC, key="k"), "only a static"),
        (replace(STATIC, tag="a b"), "'a b' is no tag"),
        (replace(STATIC, excludes=frozenset({"", "x"})), "'' is no tag"),
        (replace(STATIC, excludes=frozenset(str(number) for number in range(65))), "65 excludes"),
        (replace(STATIC, key="k" * 257), "257 characters"),
        (replace(STATIC, rate=0), "1 to 10000 messages a second"),
        (replace(QUEUE, rate=10_001), "1 to 10000 messages a second"),
        (replace(STATIC, filter=Filter()), "filter is empty"),
        (replace(QUEUE, filter=Filter(jq="true")), "queue route has no filter"),
        (replace(DYNAMIC, filter=Filter(jq="true")), "dynamic route has no filter"),
        (replace(STATIC, retention_s=59), "60 to 1209600 s"),
        (replace(STATIC, retention_s=1_209_601), "60 to 1209600 s"),
        (replace(QUEUE, retention_s=60), "is its own"),
        (replace(STATIC, dest_key=""), "1 to 256 characters"),
        (replace(QUEUE, dest_key="k" * 257), "1 to 256 characters"),
        (replace(DYNAMIC, dest_key="k"), "keeps its key"),
        (replace(STATIC, max_hops=0), "max hops"),
        (replace(STATIC, max_hops=65), "max hops"),
        (replace(STATIC, sync=0), "sync"),
        (replace(STATIC, credit=-1), "credit"),
        (replace(STATIC, sync=10, credit=7), "never fills"),
    ],
)
def test_a_bridge_that_cannot_be_is_refused_with_the_reason(bridge: Bridge, reason: str) -> None:
    with pytest.raises(BadRoute, match=reason):
        check_bridge(bridge, links=[LINK], existing=[])


def test_a_duplicate_route_is_refused_under_any_name() -> None:
    with pytest.raises(BadRoute, match="duplicate route"):
        check_bridge(replace(STATIC, name="other", tag="x", sync=5), links=[LINK], existing=[STATIC])
    with pytest.raises(BadRoute, match="bridge of this name"):
        check_bridge(replace(STATIC, key="other"), links=[LINK], existing=[STATIC])


@pytest.mark.parametrize("change", [{"key": "k2"}, {"dest": "amq.topic"}, {"src_is_local": True}, {"link": "to-c"}])
def test_another_key_end_way_or_link_makes_another_route(change: dict[str, str]) -> None:
    other = replace(STATIC, name="other", **change)
    check_bridge(other, links=[LINK, OTHER], existing=[STATIC])


def test_a_pull_comes_from_the_peer_and_a_push_goes_to_it() -> None:
    push = replace(STATIC, src_is_local=True, tag="mine", excludes=frozenset({"x"}), max_hops=2)
    assert find_site_tags(STATIC, LINK, here="A") == ("B", "A")
    assert find_site_tags(push, LINK, here="A") == ("A", "B")
    assert build_crossing(STATIC, LINK, here="A") == Crossing(peer="A", tag="B")
    assert build_crossing(push, LINK, here="A") == Crossing(peer="B", tag="mine", excludes=frozenset({"x"}), max_hops=2)
