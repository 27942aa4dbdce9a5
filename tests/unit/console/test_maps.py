"""The console's map: peers are asked seldom and within the round's calls; what is laid out is kept."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from sluice.console.maps import LONGEST_RATE, CachingClient, build_route_document, draw_map, get_peer_cache
from sluice.console.sites import CallLimitedSite, SiteCache
from sluice.errors import CallFailed
from sluice.federation.map.drawings import MAX_LABELLED
from sluice.federation.operations import ListBindings
from sluice.operator.federated_sites import DiscoveredSites
from sluice.operator.site_names import SiteName
from tests.unit.federation.test_topology import dynamic, joined, push, sites_with

CONNECTION: Any = SimpleNamespace(region="r", stage=None, endpoint_url=None, client=lambda _: None)


class Here(CallLimitedSite):
    """A site that says its tag, and whose peers answer without being asked."""

    def __init__(self, memory: SiteCache, *, calls: int = 10) -> None:
        super().__init__(CONNECTION, memory, is_local=True, calls=calls)

    def run_once(self, what: str, task: Any) -> Any:
        return SimpleNamespace(result=lambda: SimpleNamespace(tag="A"))


def discovered(*bridges: Any) -> DiscoveredSites:
    return DiscoveredSites(topology=sites_with(*bridges), not_reached={}, dynamic_paths={})


def test_lines_have_their_routes_and_room_for_a_rate() -> None:
    map_ = draw_map(Here(SiteCache()), discovered(("A", push("B")), ("B", dynamic("A"))), downwards=False)
    assert [(each["source"], each["kind"], len(each["routes"])) for each in map_["edges"]] == [
        ("A", "static", 1),
        ("B", "dynamic", 1),
    ]
    assert [each["tag"] for each in map_["nodes"] if each["here"]] == ["A"]
    assert all(LONGEST_RATE not in each["says"] and each["label"]["height"] > 2 * 17 for each in map_["edges"])


def test_what_is_laid_out_is_laid_out_once() -> None:
    memory = SiteCache()
    for _ in range(3):
        draw_map(Here(memory), discovered(("A", push("B"))), downwards=False)
    assert len(get_peer_cache(Here(memory)).layouts) == 1
    draw_map(Here(memory), discovered(("A", push("B"))), downwards=True)
    assert len(get_peer_cache(Here(memory)).layouts) == 2


def test_of_very_many_lines_none_has_a_label() -> None:
    many = [("A", f"s{number}") for number in range(MAX_LABELLED + 1)]
    map_ = draw_map(
        Here(SiteCache()), DiscoveredSites(topology=joined(many), not_reached={}, dynamic_paths={}), downwards=False
    )
    assert len(map_["edges"]) > MAX_LABELLED
    assert not any(each["label"] for each in map_["edges"])


def test_a_route_is_known_to_its_peer_by_its_sites_tag() -> None:
    [route] = sites_with(("A", push("B"))).routes
    assert (build_route_document(route)["declared_at"], build_route_document(route)["served"]) == ("A", "x-#-B@A")


class Peer:
    """Counts what it is asked, and answers once."""

    def __init__(self) -> None:
        self.asked = Counter[str]()

    def ask(self, operation: Any) -> Any:
        self.asked[type(operation).__name__] += 1
        if self.asked.total() > 1:
            raise CallFailed("Invoke", "TooManyRequests", "")
        return "an answer"


def test_a_peer_is_asked_once_in_a_while() -> None:
    memory, peer = SiteCache(), Peer()
    site = Here(memory)
    get_peer_cache(site).clients["b"] = cast("Any", peer)
    asked = CachingClient(site, SiteName("b"))
    assert [cast("Any", asked.ask(ListBindings())) for _ in range(3)] == ["an answer"] * 3
    assert peer.asked.total() == 1
