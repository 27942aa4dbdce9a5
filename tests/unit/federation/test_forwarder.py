"""Forwarding a batch: what the peer took is done, in order; the rest stays, and an outage stops it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from sluice.errors import CallFailed, Dropped, HeldBack, Malformed, NotSifted, PeerRefused, PeerUnreachable, TooLarge
from sluice.federation.forwarder import ForwardOutcome, forward_all, split_batch
from sluice.federation.links.links import Address, Bridge, Endpoint, Link
from sluice.federation.links.registry import Forward
from sluice.federation.matching.metadata import ATTRIBUTE, Crossing, DropReason, open_attributes
from sluice.federation.route_filters import BATCH_S, make_route_filter
from sluice.message import MAX_MESSAGE_BYTES, Message, Value
from sluice.splitting.filters.jq import NotRunning, ProgramTimedOut
from sluice.splitting.filters.values import Filter
from tests.federation_fakes import ADAPTER, Inline

NOW = 1_700_000_000_000
ENDPOINT = Endpoint(region="r", account="1", control_queue_url="control")
PEER = Address(
    tag="THERE", region="r", account="1", control_queue_url="control", ingress_url="in", fifo_ingress_url="in.fifo"
)
ROUTE = Forward(
    bridge=Bridge(name="route", link="link", src="amq.fanout", dest="amq.direct", src_is_local=True),
    link=Link(name="link", peer="THERE", endpoints=(ENDPOINT,)),
    crossing=Crossing(peer="THERE", tag="HERE"),
    peer=PEER,
    endpoint=ENDPOINT,
)
LUCK = ("sent", "refused in part", "failed", "unreachable", "refused")


@dataclass
class FicklePeers(ADAPTER):
    """Each call has its own luck."""

    luck: list[str] = field(default_factory=list)
    took: list[dict[str, Any]] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def send_control_message(self, link: Link, endpoint: Endpoint, body: str) -> None:
        raise AssertionError(f"nobody is told anything: {body}")

    def send_batch(
        self, link: Link, endpoint: Endpoint, url: str, entries: Sequence[dict[str, Any]]
    ) -> Mapping[str, str]:
        self.urls.append(url)
        luck = self.luck.pop() if self.luck else "sent"
        if luck == "failed":
            raise CallFailed("SendMessageBatch", "InvalidParameterValue", "by script")
        if luck == "unreachable":
            raise PeerUnreachable("by script")
        if luck == "refused":
            raise PeerRefused("by script")
        refused = {entry["Id"]: "by script" for entry in entries[::2]} if luck == "refused in part" else {}
        self.took += [entry for entry in entries if entry["Id"] not in refused]
        return refused

    @property
    def bodies(self) -> list[str]:
        return [entry["MessageBody"] for entry in self.took]


def message(body: str, group: str | None = "g", *, claims: str | None = None) -> Message:
    system = {"SentTimestamp": str(NOW - 5_000)} | ({"MessageGroupId": group} if group else {})
    attributes = {} if claims is None else {ATTRIBUTE: Value("String", claims)}
    return Message(message_id=f"id-{body}", body=body, attributes=attributes, system=system)


def run(
    messages: Sequence[Message], peers: FicklePeers, *, fifo: bool = True, route: Forward = ROUTE
) -> ForwardOutcome:
    return forward_all(messages, route, fifo=fifo, site="HERE", now_ms=NOW, peers=peers, executor=Inline())


@given(
    groups=st.lists(st.sampled_from(["g", "h"]), max_size=45),
    luck=st.lists(st.sampled_from(LUCK), max_size=8),
    fifo=st.booleans(),
)
@example(groups=["g"] * 21, luck=["refused in part"], fifo=True)
@example(groups=["g"] * 21, luck=["unreachable", "sent"], fifo=False)
def test_whatever_goes_wrong_amid_a_batch_nothing_is_done_that_the_peer_lacks(
    *, groups: list[str], luck: list[str], fifo: bool
) -> None:
    messages = [message(f"{n}", group if fifo else None) for n, group in enumerate(groups)]
    peers = FicklePeers(list(luck))
    outcome = run(messages, peers, fifo=fifo)
    done = {f"{n}" for n in range(len(messages))} - {f"{n}" for n in outcome.failures}
    assert (set(peers.bodies), len(peers.bodies)) == (done, len(done))
    assert all(map(str, outcome.failures.values()))
    if outcome.outage is not None:
        assert peers.urls == peers.urls[: len(luck)]
        assert str(outcome.outage) == "by script"
        assert {type(fault) for fault in outcome.failures.values()} == {HeldBack}
    for group in ("g", "h"):
        numbers = [int(body) for body in peers.bodies if groups[int(body)] == group]
        assert numbers == sorted(numbers)
    counts = outcome.counts
    assert (counts["MessagesForwarded"], counts["MessagesRetried"]) == (len(done), len(outcome.failures))


@pytest.mark.parametrize("luck", ["unreachable", "refused"])
@pytest.mark.parametrize("fifo", [True, False])
def test_once_the_peer_is_not_reached_nothing_more_is_tried(*, luck: str, fifo: bool) -> None:
    messages = [message(f"{n}", f"g{n}" if fifo else None) for n in range(100)]
    outcome = run(messages, peers := FicklePeers([luck, "sent"]), fifo=fifo)
    assert (len(peers.urls), len(peers.bodies), len(outcome.failures)) == (2, 10, 90)
    assert type(outcome.outage) is (PeerUnreachable if luck == "unreachable" else PeerRefused)


def test_after_a_refusal_nothing_more_of_the_group_is_sent() -> None:
    messages = [message(f"{n}") for n in range(11)] + [message("other", "h")]
    outcome = run(messages, peers := FicklePeers(["sent", "failed"]))
    assert (peers.bodies, type(outcome.failures[10]), outcome.outage) == (["other"], HeldBack, None)


@given(st.lists(st.sampled_from(LUCK), max_size=12))
def test_what_comes_again_until_it_is_done_arrives_in_order(luck: list[str]) -> None:
    peers = FicklePeers([each for each in luck if each != "refused in part"])
    left = [message(f"{n}") for n in range(15)]
    while left:
        left = [left[position] for position in sorted(run(left, peers).failures)]
    assert peers.bodies == [f"{n}" for n in range(15)]


@pytest.mark.parametrize(("fifo", "url"), [(True, "in.fifo"), (False, "in")])
def test_a_fifo_queues_messages_go_to_the_fifo_ingress(*, fifo: bool, url: str) -> None:
    run([message("m", "g" if fifo else None)], peers := FicklePeers(), fifo=fifo)
    assert peers.urls == [url]
    assert ("MessageDeduplicationId" in peers.took[0]) is fifo


def test_what_is_sent_is_for_the_routes_exchange_with_the_trace_grown_and_the_ttl_shrunk() -> None:
    claims = json.dumps({"trace": ["A", "B"], "ttl": 9_000, "stamped": NOW - 4_000})
    run([message("m", claims=claims)], peers := FicklePeers())
    said = peers.took[0]["MessageAttributes"][ATTRIBUTE]["StringValue"]
    metadata = open_attributes({ATTRIBUTE: Value("String", said)}).metadata
    assert metadata is not None
    assert (metadata.exchange, metadata.trace, metadata.ttl_ms) == ("amq.direct", ("A", "B", "HERE"), 5_000)


def run_through(sieve: Callable[[Message], bool], messages: Sequence[Message], peers: FicklePeers) -> ForwardOutcome:
    return forward_all(
        messages,
        ROUTE,
        fifo=True,
        site="HERE",
        now_ms=NOW,
        peers=peers,
        executor=Inline(),
        passes_filter=sieve,
    )


def by(author: str, **claims: Any) -> Message:
    sealed = {ATTRIBUTE: Value("String", json.dumps(claims))} if claims else {}
    said = message(author)
    return replace(said, attributes={"author": Value("String", author), **sealed})


def says_yes(program: str, document: str) -> bool | None:
    """Programs are bodies that they let over."""
    return bool(json.loads(document)["Body"] == program)


def test_only_what_a_routes_filter_matches_goes_over_and_the_rest_is_counted() -> None:
    sieve = make_route_filter(Filter(attributes=(("Author", "^m"),)), clock=lambda: 0.0, decide=says_yes)
    outcome = run_through(sieve, [by("me"), by("you"), by("mine"), message("none")], peers := FicklePeers())
    assert peers.bodies == ["me", "mine"]
    assert outcome.failures == {}
    assert outcome.counts == {"MessagesForwarded": 2, "MessagesDropped_filtered": 2}
    assert {position: drop.reason for position, drop in outcome.dropped_messages.items()} == {
        1: DropReason.FILTERED,
        3: DropReason.FILTERED,
    }


def test_a_filter_sees_all_of_the_publishers_attributes_and_no_others() -> None:
    hidden = by("x", overflow={"inside": ["String", "yes"]})
    for name, found in (("inside", 1), ("x-qpid", 0)):
        sieve = make_route_filter(Filter(attributes=((name, "."),)), clock=lambda: 0.0, decide=says_yes)
        assert run_through(sieve, [hidden], FicklePeers()).counts["MessagesForwarded"] == found


def test_what_may_not_cross_asks_no_filter() -> None:
    def asked(program: str, document: str) -> bool | None:
        raise AssertionError(f"{program} is asked of {document}")

    sieve = make_route_filter(Filter(jq="x"), clock=lambda: 0.0, decide=asked)
    outcome = run_through(sieve, [message("m", claims='{"trace": ["THERE"]}')], FicklePeers())
    assert outcome.counts == {"MessagesDropped_loop": 1}


def test_a_message_on_which_the_filter_fails_is_a_dead_letter_with_the_reason() -> None:
    def decide(program: str, document: str) -> bool | None:
        if json.loads(document)["Body"] == "bad":
            raise ProgramTimedOut(program)
        return True

    sieve = make_route_filter(Filter(jq="x"), clock=lambda: 0.0, decide=decide)
    outcome = run_through(sieve, [message("bad"), message("good")], peers := FicklePeers())
    assert {position: str(fault) for position, fault in outcome.failures.items()} == {
        0: "the route's filter: jq timed out"
    }
    assert (type(outcome.failures[0]), peers.bodies) == (NotSifted, ["good"])


def test_once_the_filters_time_is_up_the_rest_of_the_batch_waits_in_order() -> None:
    at_s = [0.0]

    def decide(program: str, document: str) -> bool | None:
        at_s[0] += BATCH_S
        return bool(program and document)

    sieve = make_route_filter(Filter(jq="x"), clock=lambda: at_s[0], decide=decide)
    outcome = run_through(sieve, [message(f"{n}") for n in range(4)], peers := FicklePeers())
    assert (peers.bodies, {type(fault) for fault in outcome.failures.values()}) == (["0"], {HeldBack})
    assert outcome.counts == {"MessagesForwarded": 1, "MessagesRetried": 3}


def test_without_what_runs_programs_all_waits() -> None:
    def cannot() -> None:
        raise NotRunning

    sieve = make_route_filter(Filter(jq="x"), clock=lambda: 0.0, decide=says_yes, ensure_started=cannot)
    outcome = run_through(sieve, [message(f"{n}") for n in range(4)], peers := FicklePeers())
    assert (peers.bodies, outcome.counts) == ([], {"MessagesRetried": 4})


def test_a_route_gives_messages_its_key_and_knows_them_by_that_too() -> None:
    claims = json.dumps({"key": "a.b", "id": "A.01HF7YAT000000000000000000"})
    keys, ids = list[str | None](), set[str]()
    for dest_key in (UNSET, "c", "d"):
        route = replace(ROUTE, bridge=msgspec.structs.replace(ROUTE.bridge, dest_key=dest_key))
        run([message("m", claims=claims)], peers := FicklePeers(), route=route)
        metadata = open_attributes(
            {ATTRIBUTE: Value("String", peers.took[0]["MessageAttributes"][ATTRIBUTE]["StringValue"])}
        ).metadata
        assert metadata is not None
        keys.append(metadata.key)
        ids.add(peers.took[0]["MessageDeduplicationId"])
    assert keys == ["a.b", "c", "d"]
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ('{"trace": ["THERE"]}', DropReason.LOOP),
        ('{"trace": ["OUT"]}', DropReason.LOOP),
        ('{"trace": ["1", "2", "3", "4", "5", "6", "7", "8"]}', DropReason.HOPS),
        ('{"ttl": 0}', DropReason.TTL),
    ],
)
def test_what_may_not_cross_is_dropped_and_counted_by_reason(claims: str, reason: DropReason) -> None:
    route = replace(ROUTE, crossing=Crossing(peer="THERE", tag="HERE", excludes=frozenset({"OUT"})))
    messages = [message("0"), message("1", claims=claims), message("2")]
    outcome = run(messages, peers := FicklePeers(), route=route)
    assert (peers.bodies, outcome.failures) == (["0", "2"], {})
    assert {position: drop.reason for position, drop in outcome.dropped_messages.items()} == {1: reason}
    assert outcome.counts[f"MessagesDropped_{reason}"] == 1


def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    large = replace(message("large"), body="x" * (MAX_MESSAGE_BYTES - 10))
    outcome = run([message("bad", claims="no JSON"), large, message("good")], peers := FicklePeers())
    assert {position: type(fault) for position, fault in outcome.failures.items()} == {0: Malformed, 1: TooLarge}
    assert peers.bodies == ["good"]


def test_what_a_queue_route_drops_is_said_and_not_thrown_away() -> None:
    route = replace(ROUTE, bridge=msgspec.structs.replace(ROUTE.bridge, src="orders", src_is_queue=True))
    outcome = run([message("0"), message("1", claims='{"ttl": 0}')], FicklePeers(), route=route)
    assert {position: str(fault) for position, fault in outcome.failures.items()} == {1: "dropped by route route: ttl"}
    assert type(outcome.failures[1]) is Dropped
    assert outcome.counts == {"MessagesForwarded": 1, "MessagesDropped_ttl": 1}


def test_the_lag_is_the_oldest_forwarded_messages() -> None:
    old = replace(message("old", "h"), system={"SentTimestamp": str(NOW - 60_000), "MessageGroupId": "h"})
    assert run([message("m"), old], FicklePeers()).lag_ms == 60_000
    assert run([message("m"), old], FicklePeers(["failed"])).lag_ms == 0


@given(groups=st.lists(st.none() | st.sampled_from(["g", "h", "i"]), max_size=30), routes=st.integers(1, 4))
def test_several_routes_share_a_batch_and_a_group_goes_over_one(groups: list[str | None], routes: int) -> None:
    shares = split_batch([message(f"{n}", group) for n, group in enumerate(groups)], routes)
    assert len(shares) == routes
    assert sorted(position for share in shares for position in share) == list(range(len(groups)))
    assert all(share == sorted(share) for share in shares)
    for group in {"g", "h", "i"} & set(groups):
        assert sum(any(groups[position] == group for position in share) for share in shares) == 1
