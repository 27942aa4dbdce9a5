"""Where a message with some key goes: as the sites' own routing tables and bridges would take it, all together."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.links.registry import format_served_name
from sluice.federation.links.states import LinkState, LinkStatus
from sluice.federation.map.destinations import Arrival, SiteExchanges, Stage, find_destinations, match_queues
from sluice.federation.map.topology import MappedSite, Topology
from sluice.federation.matching.bindings import Binding
from sluice.federation.matching.exchanges import Exchange, ExchangeType
from sluice.federation.matching.indexes import Publication
from sluice.federation.matching.topics import covers
from sluice.federation.matching.typed_values import Headers
from sluice.federation.operations import PathView
from tests.unit.federation.test_topology import TYPES, dynamic, link_to, push

EXCHANGES = {name: Exchange(name=name, type=type_) for name, type_ in TYPES.items()}


def topology(*bridges: tuple[str, Any], down: Sequence[str] = ()) -> Topology:
    tags = sorted({tag for source, bridge in bridges for tag in (source, bridge.link.removeprefix("to-"))})
    return Topology.from_sites(
        MappedSite(
            tag=tag,
            exchanges=TYPES,
            links=tuple({link_to(each.link.removeprefix("to-")) for source, each in bridges if source == tag}),
            statuses={
                each.link: LinkStatus(state=LinkState.WAITING if each.link in down else LinkState.OPERATIONAL)
                for source, each in bridges
                if source == tag
            },
            bridges=tuple(each for source, each in bridges if source == tag),
        )
        for tag in tags
    )


def bound(*bindings: tuple[str, str, str], ways: Sequence[PathView] = (), **alternates: str) -> SiteExchanges:
    exchanges = EXCHANGES | {
        name: Exchange(name=name, type=TYPES[name], alternate=alternate) for name, alternate in alternates.items()
    }
    made = [Binding(exchange=exchange, queue=queue, key=key) for exchange, queue, key in bindings]
    return SiteExchanges(exchanges=exchanges, bindings=made, paths=ways)


def way(route: str, origin: str, *, active: bool = True) -> PathView:
    return PathView(
        exchange="x", origin=origin, route=route, path=(origin,), active=active, outages=0, bindings=1, keys=("#",)
    )


def gone(where: Topology, asked: Mapping[str, SiteExchanges], key: str = "a.b", exchange: str = "x") -> Sequence[Stage]:
    return find_destinations(where, asked, Arrival("A", exchange, key), {})


def queues(stages: Sequence[Stage]) -> dict[str, list[str]]:
    return {each.at.site: list(each.queues) for each in stages}


def test_it_goes_to_bound_queues_and_over_routes_that_take_its_key() -> None:
    where = topology(("A", push("B", key="a.#")), ("A", push("C", key="c.#")), ("B", push("C", key="#")))
    asked = {"A": bound(("x", "here", "*.b"), ("x", "no", "c")), "B": bound(("x", "there", "#")), "C": bound()}
    assert queues(gone(where, asked)) == {"A": ["here"], "B": ["there"], "C": []}
    assert queues(gone(where, asked, key="z")) == {"A": []}


def test_a_message_doesnt_go_where_it_has_been() -> None:
    where = topology(("A", push("B")), ("B", push("A")))
    stages = gone(where, {"A": bound(), "B": bound()})
    assert [each.at.site for each in stages] == ["A", "B"]
    assert [each.drop_reason for each in stages[1].outcomes] == ["loop"]


def test_a_route_gives_it_another_key() -> None:
    where = topology(("A", push("B", dest_key="other.key")))
    stages = gone(where, {"A": bound(), "B": bound(("x", "by the new one", "other.key"))})
    assert (stages[1].at.key, list(stages[1].queues)) == ("other.key", ["by the new one"])


def test_what_nobody_takes_goes_to_the_alternate() -> None:
    where = topology(("A", push("B", key="nothing")))
    [stage] = gone(where, {"A": bound(("other", "all the rest", ""), x="other"), "B": bound()})
    assert (stage.exchange, list(stage.queues)) == ("other", ["all the rest"])


def test_a_route_that_is_down_keeps_it() -> None:
    stages = gone(topology(("A", push("B")), down=["to-B"]), {"A": bound(), "B": bound()})
    [passage] = stages[0].outcomes
    assert (passage.is_queued, passage.drop_reason) == (True, "")


def test_a_dynamic_route_takes_what_a_site_behind_it_wants() -> None:
    where = topology(("A", dynamic("B")))
    name = where.routes[0].bridge.name
    ways = (way(format_served_name(name, "B"), "B"),)
    assert queues(gone(where, {"A": bound(ways=ways), "B": bound(("x", "wants", "a.*"))})) == {"A": [], "B": ["wants"]}
    assert queues(gone(where, {"A": bound(ways=ways), "B": bound(("x", "wants", "c.*"))})) == {"A": []}
    [passage] = gone(where, {"A": bound(ways=ways)})[0].outcomes
    assert not passage.is_sure
    assert not gone(where, {"A": bound(ways=[way(name, "B", active=False)]), "B": bound(("x", "q", "#"))})[0].outcomes


def test_a_queue_route_takes_what_comes_to_its_queue() -> None:
    where = topology(("A", push("B", key="", src="jobs", src_is_queue=True)))
    asked = {"A": bound(("x", "jobs", "a.b")), "B": bound(("x", "there", "a.b"))}
    assert queues(gone(where, asked)) == {"A": ["jobs"], "B": ["there"]}
    assert queues(gone(where, asked, key="z")) == {"A": []}


def matches(type_: ExchangeType, binding: Binding, *, key: str, headers: Headers) -> bool:
    """Return whether a message goes to the binding's queue alone, beside another queue whose binding it misses."""
    other = Binding(exchange="x", queue="other", key="no.such.key", arguments={"x-match": "all", "no": "header"})
    queues = match_queues(type_, [other, binding], Publication(exchange="x", key=key, headers=headers))
    return queues == (["other", "q"] if type_ is ExchangeType.FANOUT else ["q"])


tokens = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4).map(".".join)


@given(pattern=tokens, key=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join))
def test_a_binding_takes_what_its_exchange_would_route_by_it(pattern: str, key: str) -> None:
    binding = Binding(exchange="x", queue="q", key=pattern)
    assert matches(ExchangeType.TOPIC, binding, key=key, headers={}) == covers(pattern, key)
    assert matches(ExchangeType.DIRECT, binding, key=key, headers={}) == (pattern == key)
    assert matches(ExchangeType.FANOUT, binding, key=key, headers={})


def test_a_headers_binding_asks_for_headers() -> None:
    binding = Binding(exchange="x", queue="q", arguments={"x-match": "all", "tenant": "blue"})
    assert matches(ExchangeType.HEADERS, binding, key="", headers={"tenant": "blue"})
    assert not matches(ExchangeType.HEADERS, binding, key="", headers={"tenant": "red"})
