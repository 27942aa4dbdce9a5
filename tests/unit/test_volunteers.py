"""Polls are held until an offer comes; answers go to their clients once."""

import itertools
import json
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.mailbox import USED_FOR_MS, Mailbox
from sluice.rendezvous.ports import Claim, OfferRecord, OfferState
from sluice.rendezvous.protocol.matching import HOLD_MS, Nat, Pool, WaitingProxy
from sluice.rendezvous.protocol.messages import OfferMethod, Poll, ProxyAnswer, RelayPattern
from sluice.rendezvous.volunteers import PollMetric, Volunteers, hash_sid
from tests.fakes import Clock, FakeMailboxStore, FakeOfferStore, FakePools, FakeQueues, recorder_of, url

ADDRESS = "192.0.2.1"


@dataclass
class World:
    """The proxy function and all it talks to."""

    clock: Clock = field(default_factory=Clock)
    pools: FakePools = field(default_factory=FakePools)
    mailboxes: FakeMailboxStore = field(default_factory=FakeMailboxStore)
    held_min: int = 4

    def __post_init__(self) -> None:
        self.queues = FakeQueues(self.clock)
        self.offers = FakeOfferStore(self.pools)
        ids = (f"id{number}" for number in itertools.count())
        self.new_id = lambda: next(ids)
        self.mailbox = Mailbox(self.queues, self.mailboxes, self.clock, self.new_id)
        self.recorder = recorder_of(self.clock)
        self.volunteers = Volunteers(
            offers=self.offers,
            pools=self.pools,
            queues=self.queues,
            mailbox=self.mailbox,
            allowed=RelayPattern.parse("snowflake.torproject.net$"),
            held_min=self.held_min,
            held_max=10,
            now_ms=self.clock,
            new_id=self.new_id,
            recorder=self.recorder,
        )

    def matched_offer(self, sid: str = "s", *, method: OfferMethod = OfferMethod.SQS) -> OfferRecord:
        reply_to = self.queues.create("snowflake-client-c", {})
        proxy = WaitingProxy(
            poll_id="p",
            sid=hash_sid(sid),
            pool=Pool.UNRESTRICTED,
            clients=0,
            polled_at_ms=self.clock.ms,
            mailbox="m",
        )
        self.pools.enter(proxy)
        offer = OfferRecord(client_id="c", sent_at_ms=self.clock.ms, method=method)
        self.offers.record(offer)
        assert self.offers.claim(offer, proxy, reply_to=reply_to, now_ms=self.clock.ms) is Claim.WON
        return offer


def poll(pattern: str | None = "torproject.net$", nat: Nat = Nat.UNRESTRICTED) -> Poll:
    return Poll(
        sid="s",
        type="standalone",
        nat=nat,
        clients=0,
        relay_pattern=None if pattern is None else RelayPattern.parse(pattern),
    )


def letter(poll_id: str) -> str:
    return json.dumps({"for": poll_id, "offer": "o", "nat": "unknown", "relay": "wss://r/"})


def test_a_poll_that_nobody_claims_ends_after_ten_seconds_and_leaves_its_pool() -> None:
    world = World()
    started_ms = world.clock.ms
    outcome, body = world.volunteers.poll(poll(), address=ADDRESS)
    assert outcome is PollMetric.IDLE
    assert json.loads(body)["Status"] == "no match"
    assert world.clock.ms - started_ms == HOLD_MS
    assert world.pools.proxies == {}


def test_a_claimed_poll_gets_its_offer() -> None:
    world = World()
    world.queues.arrivals.append(letter("id0"))
    world.pools.leave = lambda proxy: False  # type: ignore[method-assign]  # as if an offer had claimed it
    outcome, body = world.volunteers.poll(poll(), address=ADDRESS)
    assert outcome is PollMetric.MATCHED
    assert json.loads(body) == {
        "Status": "client match", "Offer": "o", "NAT": "unknown", "NextPoll": 20000, "RelayURL": "wss://r/",
    }  # fmt: skip


def test_letters_for_an_earlier_poll_are_skipped() -> None:
    world = World()
    world.queues.arrivals += [letter("earlier"), letter("id0")]
    assert world.volunteers.poll(poll(), address=ADDRESS)[0] is PollMetric.MATCHED


def test_a_poll_claimed_in_its_last_moment_waits_for_the_letter() -> None:
    world = World()
    world.pools.leave = lambda proxy: bool(world.queues.arrivals.append(letter("id0")))  # type: ignore[method-assign, func-returns-value]  # the claim's letter comes as the poll ends
    assert world.volunteers.poll(poll(), address=ADDRESS)[0] is PollMetric.MATCHED


def test_a_claim_whose_letter_never_comes_is_no_match_and_is_counted() -> None:
    world = World()
    world.pools.leave = lambda proxy: False  # type: ignore[method-assign]  # claimed, and then the broker died
    outcome, body = world.volunteers.poll(poll(), address=ADDRESS)
    assert (outcome, json.loads(body)["Status"]) == (PollMetric.LOST, "no match")


@pytest.mark.parametrize("pattern", [None, "example.com$"])
def test_a_proxy_that_would_not_reach_our_relays_is_refused_at_once(pattern: str | None) -> None:
    world = World()
    outcome, body = world.volunteers.poll(poll(pattern), address=ADDRESS)
    assert (outcome, json.loads(body)["Status"]) == (PollMetric.REFUSED, "incorrect relay pattern")
    assert world.queues.made == set()


def test_when_enough_wait_a_poll_is_sent_away_at_once() -> None:
    world = World(held_min=0)
    started_ms = world.clock.ms
    outcome, body = world.volunteers.poll(poll(), address=ADDRESS)
    assert (outcome, json.loads(body)["NextPoll"]) == (PollMetric.DEFERRED, 20_000)
    assert world.clock.ms == started_ms


def test_demand_makes_room() -> None:
    world = World(held_min=0)
    world.pools.note_offers(Pool.UNRESTRICTED, 3, now_ms=world.clock.ms)
    assert world.volunteers.poll(poll(), address=ADDRESS)[0] is PollMetric.IDLE
    assert world.volunteers.poll(poll(nat=Nat.RESTRICTED), address=ADDRESS)[0] is PollMetric.DEFERRED


def test_an_environment_keeps_its_mailbox_for_an_hour() -> None:
    world = World()
    first = world.mailbox.url()
    assert world.mailbox.url() == first
    world.clock.ms += USED_FOR_MS
    assert world.mailbox.url() != first
    assert len(world.mailboxes.notes) == 2


def test_a_mailbox_that_has_vanished_is_made_anew_next_time() -> None:
    world = World()
    first = world.mailbox.url()
    world.queues.made.clear()
    with pytest.raises(QueueGone):
        world.volunteers.poll(poll(), address=ADDRESS)
    assert world.pools.proxies == {}
    assert world.mailbox.url() != first


@pytest.mark.xfail(
    strict=True,
    raises=QueueGone,
    reason="A queue used within a second of its creation fails for good: each poll makes a new mailbox, and loses it",
)
def test_a_mailbox_that_is_not_there_at_first_is_used_once_it_is() -> None:
    world = World()
    world.queues.appears_after_ms = 1000
    for _ in range(3):
        with suppress(QueueGone):
            world.volunteers.poll(poll(), address=ADDRESS)
        world.clock.ms += 1000
    assert world.volunteers.poll(poll(), address=ADDRESS)[0] is PollMetric.IDLE
    assert len(world.mailboxes.notes) == 1


def test_an_answer_reaches_its_client_once() -> None:
    world = World()
    world.matched_offer()
    answers = [world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS) for _ in range(2)]
    assert answers == [True, False]
    assert world.queues.queues[url("snowflake-client-c")] == ['{"answer":"a"}']


def test_an_answer_to_a_client_over_http_goes_to_the_mailbox_that_waits_for_it() -> None:
    world = World()
    world.matched_offer(method=OfferMethod.HTTP)
    world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS)
    assert json.loads(world.queues.queues[url("snowflake-client-c")][0]) == {"for": "c", "answer": "a"}


def test_an_answer_from_a_stranger_or_after_the_time_out_is_too_late() -> None:
    world = World()
    assert not world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS)
    offer = world.matched_offer()
    world.offers.time_out(offer)
    assert not world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS)


def test_an_answer_whose_client_is_swept_is_too_late() -> None:
    world = World()
    world.matched_offer()
    world.queues.made.clear()
    assert not world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS)


def test_an_answer_that_cannot_be_sent_leaves_the_offer_to_its_time_out() -> None:
    world = World()
    world.matched_offer()
    world.queues.failing[url("snowflake-client-c")] = CallFailed("SendMessage", "InternalError", "later")
    with pytest.raises(CallFailed):
        world.volunteers.answer(ProxyAnswer(sid="s", answer="a"), address=ADDRESS)
    assert next(iter(world.offers.offers.values())).state is OfferState.MATCHED
