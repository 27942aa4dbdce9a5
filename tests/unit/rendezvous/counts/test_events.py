"""Events tell of every end once, with what statistics need and without an address; readers take what they know."""

import itertools
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.errors import CallFailed, Malformed
from sluice.operations import QueueDepth
from sluice.rendezvous.counts.events import (
    AnswerEvent,
    Event,
    OfferEvent,
    PollEvent,
    combine_polls,
    derive_event_id,
    parse_event,
)
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.event_recorder import MAX_BUFFERED_MS
from sluice.rendezvous.http import HttpRequest
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS, ANSWERS_MS, Nat, OfferMethod, WaitingProxy
from sluice.rendezvous.protocol.messages import Poll, RelayPattern
from sluice.rendezvous.sweeper import Sweeper
from sluice.times import DAY_MS, format_day, format_time, parse_time_ms
from sluice.ulids import ULID
from tests.fakes import Clock, FakeMailboxStore, FakeStatisticsStore, Meeting, make_recorder, url
from tests.unit.rendezvous.test_broker import World as BrokerWorld
from tests.unit.rendezvous.test_broker import post
from tests.unit.rendezvous.test_http import CLIENT, POLL
from tests.unit.rendezvous.test_http import World as HttpWorld
from tests.unit.rendezvous.test_volunteers import ANSWER
from tests.unit.rendezvous.test_volunteers import World as ProxyWorld

AT = 1_700_000_000_123
PROXY_ADDRESS = "198.51.100.7"

texts = st.text(st.characters(codec="utf-8"), max_size=20)
common = {
    "id": st.integers(0, 2**47).map(lambda at_ms: derive_event_id("offer", "c", at_ms=at_ms)),
    "at_ms": st.integers(0, 4_102_444_800_000),
    "outcome": st.sampled_from(["matched", "idle", "of the future"]),
    "nat": st.sampled_from(Nat),
    "country": st.sampled_from(["DE", "??"]),
    "proxy_type": st.none() | texts,
    "trace": st.none() | texts,
}
offers = st.builds(OfferEvent, method=st.sampled_from(OfferMethod), waited_ms=st.integers(0), **common)
polls = st.builds(
    PollEvent,
    clients=st.integers(0),
    relay_extension=st.booleans(),
    waited_ms=st.integers(0),
    address=st.none() | texts,
    polls=st.integers(1, 5),
    addresses=st.lists(texts, max_size=3, unique=True).map(tuple),
    **common,
)
answers = st.builds(AnswerEvent, **common)


@given(offers | polls | answers)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert parse_event(json.loads(event.to_json(site="s"))) == event


@given(offers | polls | answers, st.dictionaries(texts, st.integers(), max_size=3))
def test_fields_that_nobody_knows_are_ignored(event: Event, more: dict[str, int]) -> None:
    document = json.loads(event.to_json(site="s"))
    assert parse_event(more | document) == event


def test_a_denied_offer_as_it_is_published() -> None:
    event = OfferEvent(
        id=derive_event_id("offer", "c", at_ms=AT - 20),
        at_ms=AT,
        outcome="denied",
        nat="restricted",
        country="DE",
        trace="Root=1-0-0",
        method="sqs",
        waited_ms=20,
    )
    body = event.to_json(site="frankfurt")
    assert body == (
        f'{{"kind":"offer","id":"{event.id}","at":"2023-11-14T22:13:20.123Z","site":"frankfurt","trace":"Root=1-0-0",'
        '"outcome":"denied","nat":"restricted","country":"DE","proxy_type":null,"method":"sqs","waited_ms":20}'
    )
    assert event.routing_key == "rendezvous.offer.denied.DE"
    assert event.attributes == {"kind": "offer", "outcome": "denied", "country": "DE"}


def document(**changes: Any) -> dict[str, Any]:
    event = OfferEvent(id=derive_event_id("offer", "c", at_ms=AT), at_ms=AT, outcome="denied", method="sqs")
    changed = json.loads(event.to_json(site="s")) | changes
    return {name: value for name, value in changed.items() if value is not ...}


def test_a_kind_that_nobody_knows_is_no_event_and_no_fault() -> None:
    assert parse_event(document(kind="of the future")) is None


@pytest.mark.parametrize("name", ["id", "at", "outcome", "method"])
@pytest.mark.parametrize("value", [..., None, 5, []])
def test_without_what_every_event_has_it_is_malformed(name: str, value: object) -> None:
    with pytest.raises(Malformed):
        parse_event(document(**{name: value}))


@pytest.mark.parametrize("change", [{"waited_ms": "5"}, {"waited_ms": True}, {"country": 5}, {"at": "x"}])
def test_a_field_of_another_type_is_malformed(change: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        parse_event(document(**change))


@pytest.mark.parametrize("change", [{"polls": 0}, {"polls": "2"}, {"addresses": "a"}, {"addresses": [5]}])
def test_a_sum_of_no_polls_or_with_odd_addresses_is_a_bad_record(change: dict[str, object]) -> None:
    with pytest.raises(Malformed):
        parse_event(document(kind="poll", **change))


# Sums of polls


def test_polls_that_ended_alike_are_one_event() -> None:
    alike = [polled("a", clients=1), polled("b", clients=2, waited_ms=10), polled("a"), polled(None)]
    others = [polled("a", nat="restricted"), polled("a", outcome="rejected"), polled("a", country="FR")]
    found = combine_polls([*alike, *others, polled("a", at_ms=AT + DAY_MS)])
    assert [each.polls for each in found] == [4, 1, 1, 1, 1]
    assert (found[0].addresses, found[0].address) == (("a", "b"), None)
    assert (found[0].clients, found[0].waited_ms, found[0].id) == (3, 10, alike[0].id)
    assert found[1] == others[0]


def test_one_poll_is_written_as_it_always_was() -> None:
    assert not {"polls", "addresses"} & json.loads(polled("a").to_json(site="s")).keys()


@given(st.lists(polls, max_size=8))
def test_polls_count_alike_one_by_one_and_summed(events: list[PollEvent]) -> None:
    one_by_one, together = FakeStatisticsStore(), FakeStatisticsStore()
    # An address with several NATs, types or countries counts with its first, which sums don't keep: here it has one.
    polls = [replace(event, country="DE", nat="restricted", proxy_type="webext") for event in events]
    one_by_one.add([counts for event in polls if (counts := tally(event))])
    together.add([counts for event in combine_polls(polls) if (counts := tally(event))])
    assert together.counts == one_by_one.counts
    assert {day: +counts for day, counts in together.days.items()} == {
        day: +counts for day, counts in one_by_one.days.items()
    }


def polled(
    address: str | None,
    *,
    nat: str = "unknown",
    outcome: str = "idle",
    country: str = "DE",
    clients: int = 0,
    waited_ms: int = 0,
    at_ms: int = AT,
) -> PollEvent:
    return PollEvent(
        id=derive_event_id("poll", f"{next(NUMBERS)}", at_ms=AT + next(NUMBERS)),
        at_ms=at_ms,
        outcome=outcome,
        nat=nat,
        country=country,
        clients=clients,
        waited_ms=waited_ms,
        address=address,
    )


NUMBERS = itertools.count()


@given(st.integers(0, 253_402_300_799_999))
def test_times_come_back(at_ms: int) -> None:
    assert parse_time_ms(format_time(at_ms)) == at_ms
    assert format_time(at_ms).startswith(format_day(at_ms) + "T")


@pytest.mark.parametrize("text", ["2023-11-14T22:13:20.123+00:00", "2023-11-14T23:13:20.123+01:00"])
def test_a_time_may_be_spelled_otherwise(text: str) -> None:
    assert parse_time_ms(text) == AT


# What became of an offer


def told(world: Any) -> list[Event]:
    events = list(world.recorder.take_events())
    assert all(re.fullmatch(ULID, event.id) for event in events)
    assert world.recorder.take_events() == ()
    return events


def summary(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.outcome) for event in events]


def ends(world: Meeting) -> list[tuple[End, int]]:
    """What the table's stream tells of offers."""
    return list(world.offers.ended.values())


def sweep(world: Meeting) -> None:
    """Two minutes later, when an offer that nobody answered has its end."""
    world.clock.ms += ANSWER_QUEUE_AGE_MS + 1
    mailboxes: Any = FakeMailboxStore()
    Sweeper(
        site=world.dependencies(),
        mailboxes=mailboxes,
        executor=world.executor,
        depth=lambda _: QueueDepth(visible=0, in_flight=0),
    ).sweep(may_go_on=lambda: True)


def test_an_offer_that_no_proxy_took_ends_once_when_its_queue_is_swept() -> None:
    world = BrokerWorld()
    world.serve(post(nat="restricted"))
    assert ends(world) == []
    sweep(world)
    at_ms = world.clock.ms
    sweep(world)
    assert ends(world) == [(End.OFFER_DENIED, at_ms)]


def test_an_offer_that_is_delivered_again_ends_once() -> None:
    world = BrokerWorld()
    for _ in range(3):
        world.serve(post())
    sweep(world)
    assert len(ends(world)) == 1


@pytest.mark.parametrize("body", ["2.0\n{}", "1.0\n{}"])
def test_what_is_refused_isnt_counted(body: str) -> None:
    world = BrokerWorld()
    world.serve(replace(post(), body=body))
    sweep(world)
    assert ends(world) == []


def test_a_matched_offer_has_not_ended_yet() -> None:
    world = BrokerWorld()
    world.proxy("p")
    world.serve(post())
    assert (ends(world), told(world)) == ([], [])


def proxy_poll() -> Poll:
    return Poll(
        sid="s", type="webext", nat=Nat.UNRESTRICTED, clients=3, relay_pattern=RelayPattern.parse("torproject.net$")
    )


def matched(world: ProxyWorld) -> list[Event]:
    """A poll that is held for 7,000 ms when an offer comes; what is told of it then."""
    broker = BrokerWorld.beside(world)

    def offer_comes() -> None:
        world.clock.ms += 7_000
        broker.serve(post(sent_at_ms=world.clock.ms - 100, nat="restricted"))

    world.meanwhile(offer_comes)
    world.volunteers.poll(proxy_poll(), address=PROXY_ADDRESS)
    assert told(broker) == []
    return told(world)


def test_an_answered_offer_is_told_of_by_the_write_that_says_so_and_its_poll_before_it() -> None:
    world = ProxyWorld()
    [poll] = matched(world)
    assert isinstance(poll, PollEvent)
    assert (poll.outcome, poll.proxy_type, poll.nat, poll.country) == ("matched", "webext", "unrestricted", "DE")
    assert (poll.waited_ms, poll.relay_extension, poll.clients) == (7_000, True, 3)
    assert poll.address == f"hash of {PROXY_ADDRESS}"
    world.clock.ms += 150
    assert world.answer()
    answered = [(End.OFFER_MATCHED, world.clock.ms)]
    sweep(world)
    assert ends(world) == answered
    assert told(world) == []


def test_an_offer_that_times_out_ends_once_when_its_queue_is_swept() -> None:
    world = ProxyWorld()
    matched(world)
    for _ in range(2):
        sweep(world)
    [(state, _)] = ends(world)
    assert state is End.OFFER_TIMED_OUT


def test_an_answer_that_comes_too_late_is_told_of_and_is_not_the_offers_end() -> None:
    world = ProxyWorld()
    matched(world)
    world.clock.ms += ANSWERS_MS
    assert world.volunteers.answer(ANSWER, address=PROXY_ADDRESS) is End.ANSWER_TOO_LATE
    [late] = told(world)
    assert summary([late]) == [("answer", "timeout")]
    assert (late.proxy_type, late.country) == ("unknown", "DE")
    assert ends(world) == []


def test_an_answer_to_a_client_whose_queue_is_gone_was_taken_all_the_same() -> None:
    world = ProxyWorld()
    matched(world)
    world.queues.made.remove(url("snowflake-client-c1"))
    assert not world.answer()
    [(state, _)] = ends(world)
    assert state is End.OFFER_MATCHED


def test_an_answer_that_cannot_be_sent_was_taken_all_the_same() -> None:
    world = ProxyWorld()
    matched(world)
    world.queues.failing[url("snowflake-client-c1")] = CallFailed("SendMessage", "Throttled", "")
    with pytest.raises(CallFailed):
        world.answer()
    sweep(world)
    [(state, _)] = ends(world)
    assert state is End.OFFER_MATCHED


# What became of a poll


@pytest.mark.parametrize(
    ("pattern", "held_min", "outcome", "waited_ms"),
    [("torproject.net$", 4, "idle", 10_000), ("torproject.net$", 0, "idle", 0), ("example.com$", 4, "rejected", 0)],
)
def test_a_poll_without_a_client_is_told_of(pattern: str, held_min: int, outcome: str, waited_ms: int) -> None:
    world = ProxyWorld(held_min=held_min)
    poll = Poll(sid="s", type="badge", nat=Nat.UNKNOWN, clients=1, relay_pattern=RelayPattern.parse(pattern))
    world.volunteers.poll(poll, address=PROXY_ADDRESS)
    [event] = told(world)
    assert isinstance(event, PollEvent)
    assert (event.outcome, event.waited_ms, event.relay_extension) == (outcome, waited_ms, True)
    assert (event.proxy_type, event.nat, event.country, event.clients) == ("badge", "unknown", "DE", 1)


def test_a_poll_that_names_no_relay_pattern_is_rejected_and_said_to_be_without() -> None:
    world = ProxyWorld()
    world.volunteers.poll(
        Poll(sid="s", type="webext", nat=Nat.UNKNOWN, clients=0, relay_pattern=None), address="nowhere"
    )
    [event] = told(world)
    assert isinstance(event, PollEvent)
    assert (event.outcome, event.relay_extension) == ("rejected", False)


def test_a_poll_whose_letter_was_lost_is_idle_and_its_offer_times_out() -> None:
    world = ProxyWorld()

    def broker_dies_after_its_match() -> None:
        [proxy] = world.pools.proxies.values()
        assert world.offers.match(world.offer(), proxy, now_ms=world.clock.ms)

    world.meanwhile(broker_dies_after_its_match)
    world.poll(proxy_poll())
    assert summary(told(world)) == [("poll", "idle")]
    sweep(world)
    [(state, _)] = ends(world)
    assert state is End.OFFER_TIMED_OUT


def test_a_poll_that_takes_an_offer_that_waits_is_matched_at_once() -> None:
    world = ProxyWorld()
    world.waiting.add([world.offer()])
    world.poll(proxy_poll())
    [event] = told(world)
    assert isinstance(event, PollEvent)
    assert (event.outcome, event.waited_ms) == ("matched", 0)


def test_a_poll_that_got_a_client_is_told_of_by_who_held_it() -> None:
    clock = Clock(AT)
    recorder = make_recorder(clock)
    profile = recorder.build_profile(proxy_poll(), address=PROXY_ADDRESS)
    clock.ms += 7_000
    recorder.record_poll(proxy_poll(), profile, End.POLL_MATCHED, polled_at_ms=AT)
    [event] = recorder.take_events()
    assert isinstance(event, PollEvent)
    assert (event.outcome, event.waited_ms, event.clients, event.polls) == ("matched", 7_000, 3, 1)
    assert event.address == f"hash of {PROXY_ADDRESS}"


def test_polls_without_a_client_are_held_back_and_told_of_together() -> None:
    clock, published = Clock(AT), list[Event]()
    recorder = replace(make_recorder(clock), publisher=lambda events: published.extend(events) or 0)  # type: ignore[func-returns-value]  # it adds

    def invoked(address: str) -> list[int]:
        poll, before = proxy_poll(), len(published)
        profile = recorder.build_profile(poll, address=address)
        recorder.record_poll(poll, profile, End.POLL_IDLE, polled_at_ms=clock.ms)
        recorder.publish()
        return [each.polls for each in published[before:] if isinstance(each, PollEvent)]

    assert invoked("a") == [1]  # the first at once
    assert [invoked("b"), invoked("c")] == [[], []]
    clock.ms += MAX_BUFFERED_MS
    assert invoked("b") == [3]
    assert invoked("b") == []


# Over HTTP


def test_offers_over_http_end_when_their_clients_are_told() -> None:
    world = HttpWorld()
    world.request("POST", "/client", CLIENT)
    assert [state for state, _ in ends(world)] == [End.OFFER_DENIED]
    world.silent_proxy()
    world.request("POST", "/client", CLIENT)
    sweep(world)
    assert [state for state, _ in ends(world)] == [End.OFFER_DENIED, End.OFFER_TIMED_OUT]


def test_an_offer_over_http_that_is_answered_is_told_of_by_who_answered_it() -> None:
    world = HttpWorld()
    world.parse_waiting_proxy()
    world.request("POST", "/client", CLIENT)
    assert told(world) == []


def test_where_a_poll_came_from_is_the_requests_address() -> None:
    world = HttpWorld()
    event = {
        "rawPath": "/proxy",
        "requestContext": {"http": {"method": "POST", "sourceIp": PROXY_ADDRESS}},
        "body": POLL.decode(),
    }
    world.proxies().serve(HttpRequest.parse(event))
    [poll] = told(world)
    assert isinstance(poll, PollEvent)
    assert poll.address == f"hash of {PROXY_ADDRESS}"
    assert PROXY_ADDRESS not in poll.to_json(site="s").replace("hash of " + PROXY_ADDRESS, "")


def test_available_proxies_are_known_by_type_and_nat() -> None:
    world = ProxyWorld()
    seen = list[WaitingProxy]()
    world.meanwhile(lambda: seen.extend(world.pools.proxies.values()))
    world.poll(proxy_poll())
    [profile] = [proxy.profile for proxy in seen]
    assert (profile.type, profile.nat, profile.country) == ("webext", "unrestricted", "DE")
    assert (profile.address, profile.relay_extension) == ("hash of 192.0.2.1", True)
