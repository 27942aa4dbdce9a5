"""Federation's cases on sites in two regions and two accounts, through the deployed functions, IAM enforced."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from sluice.errors import RequestRefused
from sluice.federation.links.links import Bridge, Link
from sluice.federation.links.states import Command
from sluice.federation.matching.exchanges import ExchangeType
from sluice.federation.operations import (
    AddBridge,
    AddExchange,
    AddLink,
    BindQueue,
    CloseBridge,
    CloseLink,
    CommandBridge,
    CommandLink,
    ListQueues,
    ShowSite,
)
from tests.deployed import make_queue
from tests.e2e.federated import FIFO, FederatedSite, bodies_of_all
from tests.e2e.functions_killed import functions_killed
from tests.e2e.ways import Way

TEN = [f"Message {number}" for number in range(1, 11)]
TYPES = {"direct": "amq.direct", "topic": "amq.topic", "fanout": "amq.fanout", "headers": "amq.match"}
EVERYTHING: dict[str, Any] = {"x-match": "all"}


def test_links_and_routes_go_without_a_trace(b0: FederatedSite, b1: FederatedSite) -> None:
    route = b0.pull(b1, "amq.direct", key="k")
    b0.ask(CloseBridge(name=route))
    b0.until(lambda site: not site.bridges)
    b1.until(lambda site: not site.bridges, within_s=120)
    b0.close_all()
    b0.until(lambda site: not site.links)
    b1.until(lambda site: not site.links)


def test_ten_pulled_arrive_in_order(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.fanout")
    b0.pull(b1, "amq.direct", "amq.fanout", key="my-key")
    b1.publish("amq.direct", "my-key", TEN)
    b1.publish("amq.direct", "another-key", ["not this"])
    assert b0.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_ten_pushed_arrive_in_order(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.fanout")
    b1.push(b0, "amq.direct", "amq.fanout", key="my-key")
    b1.publish("amq.direct", "my-key", TEN)
    assert b0.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_a_loaded_queue_is_pulled_in_order(b0: FederatedSite, b1: FederatedSite) -> None:
    queue, source = b0.bound("amq.fanout"), b1.queue("source")
    b1.load(source, TEN[:5])
    b0.pull(b1, source, "amq.fanout", src_is_queue=True, sync=1)
    assert b0.bodies(queue, 5) == TEN[:5]
    b1.load(source, TEN[5:])
    assert b0.bodies(queue, 5) == TEN[5:]
    assert b1.count(source) == 0


@pytest.mark.slow
def test_a_source_queue_that_is_made_again_is_read_again(b0: FederatedSite, b1: FederatedSite) -> None:
    queue, source = b0.bound("amq.fanout"), b1.queue("source")
    b1.load(source, TEN[:5])
    b0.pull(b1, source, "amq.fanout", src_is_queue=True, sync=1)
    assert b0.bodies(queue, 5) == TEN[:5]
    b1.sqs.delete_queue(QueueUrl=b1.url(source))
    time.sleep(3)
    make_queue(b1.sqs, source, FIFO)
    b1.load(source, TEN[5:])
    assert b0.bodies(queue, 5, within_s=90) == TEN[5:]


def test_links_both_ways_make_no_echo(b0: FederatedSite, b1: FederatedSite) -> None:
    here, there = b0.bound("amq.fanout"), b1.bound("amq.fanout")
    routes = [(b0, b0.begin_to_pull(b1, "amq.fanout")), (b1, b1.begin_to_pull(b0, "amq.fanout"))]
    for site, route in routes:
        site.until_operational(route)
    b1.publish("amq.fanout", "", TEN)
    arrived = b0.arrivals(here, 10, quiet_s=3)
    assert [arrival.body for arrival in arrived] == TEN
    assert [arrival.trace for arrival in arrived] == [[b1.tag]] * 10
    assert b1.bodies(there, 10) == TEN


def test_tags_and_excludes_and_a_shrinking_ttl(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.fanout")
    b0.pull(b1, "amq.fanout", tag="my-bridge-id", excludes=frozenset({"exclude-me", "also-exclude-me"}))
    traces = [[], ["exclude-me"], ["dont-exclude-me"], ["also-exclude-me"], ["dont", "exclude-me"]]
    for number, trace in enumerate(traces):
        b1.publish("amq.fanout", "", [str(number)], trace=trace, ttl=600_000)
    arrived = b0.arrivals(queue, 2, quiet_s=3)
    assert {arrival.body: arrival.trace for arrival in arrived} == {
        "0": ["my-bridge-id"],
        "2": ["dont-exclude-me", "my-bridge-id"],
    }
    assert all(0 < arrival.metadata["ttl"] < 600_000 for arrival in arrived)


def test_a_queue_bound_twice_gets_one_copy(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.topic", "a.#")
    b0.bind("amq.topic", queue, "*.b")
    b0.pull(b1, "amq.topic", key="#")
    b1.publish("amq.topic", "a.b", TEN)
    assert b0.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_two_routes_share_one_source_queue(b0: FederatedSite, b1: FederatedSite) -> None:
    source = b1.queue("source", fifo=False)
    queues = [b0.bound("amq.direct", fifo=False), b0.bound("amq.fanout", fifo=False)]
    for number, dest in enumerate(("amq.direct", "amq.fanout")):
        b0.route(f"q{number}", b0.link(b1, f"link-{number}"), src=source, dest=dest, src_is_queue=True)
    b1.load(source, [str(number) for number in range(5)])
    got = [b0.bodies(queue, 1, quiet_s=3) for queue in queues]
    assert sorted({*got[0], *got[1]}) == [str(number) for number in range(5)]
    assert all(got)
    b0.ask(CloseBridge(name="q0"))
    b1.until(lambda site: len(site.bridges) == 1)
    b1.load(source, ["after"])
    assert b0.bodies(queues[1], 1) == ["after"]


@pytest.mark.slow
def test_a_thousand_over_a_queue_route_with_credit(b0: FederatedSite, b1: FederatedSite) -> None:
    queue, source = b0.bound("amq.fanout"), b1.queue("source")
    b0.pull(b1, source, "amq.fanout", src_is_queue=True, sync=3, credit=7)
    thousand = [str(number) for number in range(1_000)]
    b1.load(source, thousand)
    assert b0.bodies(queue, 1_000, within_s=180) == thousand
    assert b1.count(source) == 0


@pytest.mark.parametrize(
    ("sync", "messages"),
    [pytest.param(1, 103, marks=pytest.mark.slow), pytest.param(10, 103, marks=pytest.mark.slow), (10, 23)],
)
def test_every_type_of_exchange_by_every_kind_of_route(
    b0: FederatedSite, b1: FederatedSite, sync: int, messages: int
) -> None:
    numbers = [str(number) for number in range(messages)]
    exchanges, sources, routes = {}, {}, []
    for kind, exchange in TYPES.items():
        arguments: dict[str, Any] = EVERYTHING if kind == "headers" else {}
        for site in (b0, b1):
            site.ask(AddExchange(name=f"by-{kind}", type=ExchangeType(kind)))
        exchanges[exchange] = b0.bound(exchange, "k", **arguments)
        key = "k" if ExchangeType(kind).follows_keys else ""
        routes.append(b0.begin_to_pull(b1, exchange, key=key, sync=sync))
        sources[b1.queue("source")] = b0.bound(f"by-{kind}", "k", **arguments)
    for (source, _), kind in zip(sources.items(), TYPES, strict=True):
        routes.append(b0.begin_to_pull(b1, source, f"by-{kind}", src_is_queue=True, sync=sync))
    for route in routes:
        b0.until_operational(route)
    for exchange in exchanges:
        b1.publish(exchange, "k", numbers)
    for source in sources:
        b1.load(source, numbers, attributes={"routing-key": {"DataType": "String", "StringValue": "k"}})
    queues = (*exchanges.values(), *sources.values())
    got = bodies_of_all([(b0, queue) for queue in queues], messages, within_s=180)
    assert got == [numbers] * len(queues)
    assert all(b1.count(source) == 0 for source in sources)


@pytest.mark.parametrize("way_round", ["pull", pytest.param("push", marks=pytest.mark.slow)])
def test_nothing_is_lost_while_the_peer_is_down(b0: FederatedSite, b1: FederatedSite, way: Way, way_round: str) -> None:
    twenty = [f"Message {number}" for number in range(20)]
    by_exchange, by_queue, source = b0.bound("amq.topic", "#"), b0.bound("amq.fanout"), b1.queue("source")
    routes: dict[str, dict[str, Any]] = {
        "amq.topic": {"src": "amq.topic", "key": "a.*"},
        "amq.fanout": {"src": source, "src_is_queue": True},
    }
    declaring, other = (b0, b1) if way_round == "pull" else (b1, b0)
    declared = [
        declaring.begin_to_pull(other, dest=dest, src_is_local=way_round == "push", **fields)
        for dest, fields in routes.items()
    ]
    for route in declared:
        declaring.until_operational(route)
    way.cut()
    b1.publish("amq.topic", "a.b", twenty)
    b1.load(source, twenty)
    forwarder = next(bridge.link for bridge in b1.ask(ShowSite()).bridges)
    b1.until_link(forwarder, "Waiting", "Connecting")
    assert b0.bodies(by_exchange, 1, within_s=3) == []
    way.mend()
    assert bodies_of_all([(b0, by_exchange), (b0, by_queue)], 20, within_s=120) == [twenty, twenty]
    assert b1.dead_letters(twenty[0], within_s=2) == []


def test_a_peer_that_refuses_is_failed_and_comes_back_when_asked(b0: FederatedSite, b1: FederatedSite) -> None:
    link = b1.link(b0)
    queue = b0.bound("amq.fanout")
    b1.ask(CloseLink(name=link))
    b1.until(lambda site: not site.links)
    right = b0.address.endpoint
    wrong = replace(right, control_queue_url=right.control_queue_url.replace("FederationLinks", "FederationNone"))
    for endpoint in (wrong, right):
        b1.ask(AddLink(link=Link(name="far", peer=b0.tag, endpoints=(endpoint,))))
        if endpoint is wrong:
            error = b1.until_link("far", "Failed").status.last_error or ""
            assert "NonExistent" in error or "DoesNotExist" in error
            b1.ask(CommandLink(name="far", command=Command.RETRY))
            b1.until_link("far", "Failed")
            b1.ask(CloseLink(name="far"))
            b1.until(lambda site: not site.links)
    b1.route("push", "far", src="amq.fanout", dest="amq.fanout", src_is_local=True)
    b1.publish("amq.fanout", "", TEN)
    assert b0.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_paused_routes_keep_and_resumed_ones_send(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.fanout")
    route = b1.push(b0, "amq.fanout")
    b1.ask(CommandBridge(name=route, command=Command.PAUSE))
    time.sleep(2)
    b1.publish("amq.fanout", "", TEN)
    assert b0.bodies(queue, 1, within_s=3) == []
    b1.ask(CommandBridge(name=route, command=Command.RESUME))
    assert b0.bodies(queue, 10) == TEN


@pytest.mark.slow
def test_a_link_that_drains_takes_nothing_more_in(b0: FederatedSite, b1: FederatedSite) -> None:
    queue = b0.bound("amq.fanout")
    b1.push(b0, "amq.fanout")
    link = b1.ask(ShowSite()).links[0].name
    b1.publish("amq.fanout", "", TEN)
    assert b0.bodies(queue, 10) == TEN
    b1.ask(CommandLink(name=link, command=Command.DRAIN))
    b1.until_link(link, "Paused")
    b1.publish("amq.fanout", "", ["not this"])
    b1.ask(CommandLink(name=link, command=Command.RESUME))
    b1.until_link(link, "Operational")
    time.sleep(2.5)
    b1.publish("amq.fanout", "", ["this"])
    assert b0.bodies(queue, 1, quiet_s=2) == ["this"]


@pytest.mark.slow
def test_opposite_queue_routes_pass_a_message_on_once(b0: FederatedSite, b1: FederatedSite) -> None:
    for site in (b0, b1):
        site.ask(AddExchange(name="turn", type=ExchangeType.FANOUT))
    here, there = b0.bound("turn"), b1.bound("turn")
    b0.pull(b1, there, "turn", src_is_queue=True)
    b1.pull(b0, here, "turn", src_is_queue=True)
    b1.load(there, ["round"])
    reasons = b0.dead_letters("round", within_s=120)
    assert len(reasons) == 1
    assert "loop" in reasons[0]
    assert (b0.count(here), b1.count(there)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 4])
def test_every_site_of_a_ring_gets_ten_each_once(sites: list[FederatedSite], number: int) -> None:
    ring = sites[:number]
    queues = [site.bound("amq.fanout") for site in ring]
    routes = [
        (site, site.begin_to_pull(ring[neighbour], "amq.fanout"))
        for place, site in enumerate(ring)
        for neighbour in {(place + 1) % number, (place - 1) % number}
    ]
    for site, route in routes:
        site.until_operational(route)
    ring[0].publish("amq.fanout", "", TEN)
    assert bodies_of_all(zip(ring, queues, strict=True), 10, quiet_s=3) == [TEN] * number


@pytest.mark.slow
def test_along_a_tree_each_site_gets_its_own(sites: list[FederatedSite]) -> None:
    keys = ["zero.#", "one.#", "two.#", "three.#"]
    queues = [site.bound("amq.topic", key) for site, key in zip(sites, keys, strict=True)]
    for nearer, farther in pairwise(sites):
        nearer.pull(farther, "amq.topic", key="#")
    for word in ("zero", "one", "two", "three"):
        sites[3].publish("amq.topic", f"{word}.x", TEN)
    for site, queue in zip(sites, queues, strict=True):
        assert site.bodies(queue, 10) == TEN
    sites[1].unbind("amq.topic", queues[1], keys[1])
    time.sleep(1.1)
    for word in ("zero", "one", "two", "three"):
        sites[3].publish("amq.topic", f"{word}.y", ["again"])
    got = [
        site.bodies(queue, 1, within_s=60) for site, queue in zip(sites, queues, strict=True) if site is not sites[1]
    ]
    assert got == [["again"]] * 3
    assert sites[1].bodies(queues[1], 1, within_s=1) == []


def test_what_is_unusual_survives_the_hop(b0: FederatedSite, b1: FederatedSite) -> None:
    key = "k" * 256
    queue = b0.bound("amq.direct", key)
    b0.pull(b1, "amq.direct", key=key)
    attributes = {"reply-to": {"DataType": "String", "StringValue": "queue-of-answers"}}
    b1.publish("amq.direct", key, [" "], attributes=attributes)
    [arrived] = b0.arrivals(queue, 1)
    assert (arrived.body, arrived.metadata["key"]) == (" ", key)
    assert arrived.attributes["reply-to"]["StringValue"] == "queue-of-answers"


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({}, "names no exchange"),
        ({"exchange": "nowhere"}, "no such exchange: nowhere"),
        ({"exchange": "amq.direct", "routing-key": "k" * 257}, "routing-key of 257 characters"),
        ({"x-qpid": "{"}, "x-qpid"),
        ({"x-qpid": '{"exchange": "amq.fanout", "trace": ["a b"]}'}, "at `$.trace[0]`"),
    ],
)
def test_what_cannot_be_routed_is_dead_with_the_reason(
    b1: FederatedSite, attributes: dict[str, str], reason: str
) -> None:
    body = f"dead of {reason}"
    said = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    b1.sqs.send_message(QueueUrl=b1.outputs["IngressUrl"], MessageBody=body, MessageAttributes=said)
    [found] = b1.dead_letters(body)
    assert reason in found


def test_what_cannot_be_is_refused_with_the_reason(b0: FederatedSite, b1: FederatedSite) -> None:
    with pytest.raises(RequestRefused, match="a site is no peer of its own"):
        b0.link(b0)
    link = b0.link(b1)
    one = Bridge(name="one", link=link, src="amq.topic", dest="amq.topic", key="a")
    b0.ask(AddBridge(bridge=one))
    other = replace(one, name="other")
    for bad, reason in (
        (other, "duplicate route"),
        (replace(other, key="", dynamic=True, src_is_local=True), "a dynamic route is pulled"),
        (replace(other, key="", link="none"), "no such link"),
    ):
        with pytest.raises(RequestRefused, match=reason):
            b0.ask(AddBridge(bridge=bad))
    with pytest.raises(RequestRefused, match="not a queue that this site may use"):
        b0.ask(BindQueue(exchange="amq.topic", queue="somebody-elses"))


def test_a_site_tells_its_exchanges_and_which_queues_are_bound_and_read(b0: FederatedSite, b1: FederatedSite) -> None:
    bound, source = b1.bound("amq.fanout"), b1.queue("source")
    route = b0.pull(b1, source, "amq.fanout", src_is_queue=True)
    assert {exchange.name for exchange in b1.ask(ShowSite()).exchanges} >= set(TYPES.values())
    found = {queue.name: (queue.deployed, queue.bindings, queue.routes) for queue in b1.ask(ListQueues()).queues}
    assert found[bound] == (False, 1, ())
    assert found[source] == (False, 0, (f"{route}@{b0.tag}",))


@pytest.mark.slow
def test_links_are_made_side_by_side(sites: list[FederatedSite]) -> None:
    """Everybody links to everybody at once: the links functions write over nobody."""
    pairs = [(site, peer) for site in sites for peer in sites if site is not peer]
    with ThreadPoolExecutor(len(pairs)) as executor:
        list(executor.map(lambda pair: pair[0].link(pair[1]), pairs))
    for site in sites:
        found = site.until(lambda said: all(link.status.state == "Operational" for link in said.links))
        assert len(found.links) == 2 * (len(sites) - 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_while_functions_are_killed(
    b0: FederatedSite, b1: FederatedSite, record_property: Callable[..., None]
) -> None:
    numbers = [str(number) for number in range(5_000)]
    queue = b0.bound("amq.fanout", fifo=False)
    b0.pull(b1, "amq.fanout", fifo=False)
    # What a killed function had in hand comes again after this: SQS's own three minutes would only make it longer.
    shortened = [(b1, "sluice-bridge-"), (b1, "SluiceState-FederationIngress"), (b0, "SluiceState-FederationLi")]
    for site, prefix in shortened:
        for url in site.sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"]:
            site.sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "5"})
    got: Counter[str] = Counter()
    with functions_killed(b0.cloud, ["SluiceFederation-Exchange", "SluiceFederation-Bridge"], every_s=(1, 4)) as killed:
        for start in range(0, len(numbers), 500):
            b1.publish("amq.fanout", "", numbers[start : start + 500], fifo=False)
        deadline = time.monotonic() + 600
        while len(got) < len(numbers) and time.monotonic() < deadline:
            got.update(b0.bodies(queue, 10, within_s=5, quiet_s=0))
    got.update(b0.bodies(queue, 1, within_s=10))
    assert sorted(got, key=int) == numbers, f"dead letters: {b0.dead_letters_depth()} and {b1.dead_letters_depth()}"
    record_property("killed", killed.total())
    record_property("duplicates", got.total() - len(got))
    assert killed.total() > 5
