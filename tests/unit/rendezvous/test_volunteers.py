"""Polls take an offer that waits, or are held until one comes; answers go to their clients once."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec.structs import replace

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.mailbox import USED_FOR_MS, Mailbox
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    HOLD_MS,
    PATIENCE_MS,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    WaitingProxy,
)
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, Poll, ProxyAnswer, RelayPattern
from sluice.rendezvous.protocol.pace import CROWD, Counts
from sluice.rendezvous.volunteers import MAX_MATCHES, Volunteers, hash_sid
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS
from tests.fakes import FakeMailboxStore, Meeting, url

ADDRESS = "192.0.2.1"
ANSWER = ProxyAnswer(sid="s", answer="a")


@dataclass
class World(Meeting):
    """The proxy function and all it talks to."""

    mailboxes: FakeMailboxStore = field(default_factory=FakeMailboxStore)
    held_min: int = 4
    deleted: list[str] = field(default_factory=list)
    refused: Exception | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        site, mailboxes = self.dependencies(), cast("Any", self.mailboxes)
        self.mailbox = Mailbox(site, mailboxes)
        self.volunteers = Volunteers(
            site=site,
            mailbox=self.mailbox,
            allowed_relay_pattern=RelayPattern.parse("snowflake.torproject.net$"),
            held_proxies_min=self.held_min,
            held_proxies_max=10,
            delete_message=self.delete_message,
        )

    def delete_message(self, receipt_handle: str) -> None:
        self.deleted.append(receipt_handle)
        if self.refused is not None:
            raise self.refused

    def poll(self, given: Poll | None = None) -> tuple[End, dict[str, Any]]:
        metric, body = self.volunteers.poll(given or poll(), address=ADDRESS)
        return metric, json.loads(body)

    def answer(self) -> bool:
        return self.volunteers.answer(ANSWER, address=ADDRESS) is End.ANSWER_DELIVERED

    def offer(
        self, client_id: str = "c", *, nat: Nat = Nat.UNKNOWN, method: OfferMethod = OfferMethod.SQS
    ) -> OpenOffer:
        """One that a broker has received just now."""
        handle = "" if method is OfferMethod.HTTP else f"handle of {client_id}"
        record = OfferRecord(
            client_id=client_id, sent_at_ms=self.clock.ms, method=method, nat=nat, receipt_handle=handle
        )
        self.offers.record(record)
        return OpenOffer(
            record=record,
            offer=f"offer of {client_id}",
            relay="wss://r/",
            reply_to=self.queues.create(ANSWER_QUEUE_PREFIX + client_id, {}),
            answers_until_ms=self.clock.ms + PATIENCE_MS,
        )

    def broker_gives(self, offer: OpenOffer) -> bool:
        """What a broker does that sees who waits."""
        matchmaker = self.matchmaker()
        return matchmaker.match(offer, matchmaker.next_candidate(offer.record.nat))

    def match(self, offer: OpenOffer) -> None:
        """Give an offer to the proxy that answers."""
        proxy = WaitingProxy(
            poll_id="p", sid=hash_sid("s"), pool=Pool.UNRESTRICTED, clients=0, polled_at_ms=self.clock.ms
        )
        assert self.offers.match(offer, proxy, now_ms=self.clock.ms)

    def meanwhile(self, happens: Callable[[], object]) -> None:
        """When the poll next looks into its mailbox."""
        receive = self.queues.receive

        def look(url: str, *, wait_s: int) -> str | None:
            self.queues.receive = receive  # type: ignore[method-assign]  # once
            happens()
            return receive(url, wait_s=wait_s)

        self.queues.receive = look  # type: ignore[method-assign]

    def polled_lately(self, counted: Counts) -> None:
        """By other environments, in this minute."""
        self.pace.minutes[self.clock.ms // MINUTE_MS] = counted


def poll(pattern: str | None = "torproject.net$", nat: Nat = Nat.UNRESTRICTED) -> Poll:
    return Poll(
        sid="s",
        type="standalone",
        nat=nat,
        clients=0,
        relay_pattern=None if pattern is None else RelayPattern.parse(pattern),
    )


# Polls that are held


def test_a_poll_that_nobody_came_for_ends_after_ten_seconds_and_leaves_its_pool() -> None:
    world = World()
    started_ms = world.clock.ms
    metric, body = world.poll()
    assert (metric, body["Status"], body["NextPoll"]) == (End.POLL_IDLE, "no match", 20_000)
    assert world.clock.ms - started_ms == HOLD_MS
    assert world.pools.proxies == {}


def test_a_poll_that_is_over_is_given_nothing_by_whoever_drew_it_before() -> None:
    world = World()
    drawn = list[WaitingProxy]()
    world.meanwhile(lambda: drawn.extend(world.pools.proxies.values()))
    world.poll()
    [proxy] = drawn
    assert not world.offers.match(world.offer(), proxy, now_ms=world.clock.ms)


def test_a_matched_poll_gets_its_letter() -> None:
    world = World()
    world.meanwhile(lambda: world.broker_gives(world.offer()))
    assert world.poll() == (
        End.POLL_MATCHED,
        {"Status": "client match", "Offer": "offer of c", "NAT": "unknown", "NextPoll": 20000, "RelayURL": "wss://r/"},
    )
    assert world.pools.proxies == {}


def test_letters_for_an_earlier_poll_are_skipped() -> None:
    world = World()

    def two_letters() -> None:
        world.queues.send(world.mailbox.get_url(), json.dumps({"for": "earlier", "offer": "o", "nat": "", "relay": ""}))
        world.broker_gives(world.offer())

    world.meanwhile(two_letters)
    assert world.poll()[1]["Offer"] == "offer of c"


def test_a_poll_that_is_matched_in_its_last_moment_waits_for_the_letter() -> None:
    world = World()
    matchmaker, drawn, close = world.matchmaker(), list[WaitingProxy | None](), world.offers.close_poll
    world.meanwhile(lambda: drawn.append(matchmaker.next_candidate(Nat.UNKNOWN)))

    def close_too_late(proxy: WaitingProxy) -> bool:
        assert matchmaker.match(world.offer(), drawn[0])
        return close(proxy)

    world.offers.close_poll = close_too_late  # type: ignore[method-assign]
    metric, body = world.poll()
    assert (metric, body["Offer"]) == (End.POLL_MATCHED, "offer of c")


def test_a_match_whose_letter_never_comes_is_no_match_and_is_counted() -> None:
    world = World()

    def broker_dies_after_its_match() -> None:
        [proxy] = world.pools.proxies.values()
        assert world.offers.match(world.offer(), proxy, now_ms=world.clock.ms)

    world.meanwhile(broker_dies_after_its_match)
    metric, body = world.poll()
    assert (metric, body["Status"]) == (End.POLL_LOST, "no match")


@pytest.mark.parametrize("pattern", [None, "example.com$"])
def test_a_proxy_that_would_not_reach_our_relays_is_refused_at_once(pattern: str | None) -> None:
    world = World()
    world.waiting.add([world.offer()])
    metric, body = world.poll(poll(pattern))
    assert (metric, body["Status"]) == (End.POLL_REFUSED, "incorrect relay pattern")
    assert (len(world.waiting.offers), world.mailboxes.notes) == (1, {})


# Offers that wait


@pytest.mark.parametrize("held_min", [0, 4])
def test_a_poll_takes_the_oldest_offer_that_waits_at_once(held_min: int) -> None:
    world = World(held_min=held_min)
    offers = []
    for client_id in ("old", "young"):
        offers.append(world.offer(client_id))
        world.clock.ms += 100
    world.waiting.add(list(reversed(offers)))
    started_ms = world.clock.ms
    assert world.poll()[1]["Offer"] == "offer of old"
    assert world.poll()[1]["Status"] == "no match"  # its Sid has one to answer
    assert [offer.record.client_id for offer in world.waiting.offers.values()] == ["young"]
    assert (world.clock.ms - started_ms, world.pools.proxies) == (HOLD_MS if held_min else 0, {})


def test_a_poll_that_is_held_looks_after_it_has_entered_and_sees_what_was_written_before() -> None:
    """Whoever came just before it entered has looked for it in vain."""
    world = World()
    enter, oldest, asked = world.pools.add_proxy, world.waiting.read_oldest, list[bool]()

    def enter_late(proxy: WaitingProxy) -> None:
        world.waiting.add([world.offer()])
        enter(proxy)

    def look(pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = False) -> Sequence[OpenOffer]:
        asked.append(consistent)
        return oldest(pool, now_ms=now_ms, limit=limit, shards=shards)

    world.pools.add_proxy = enter_late  # type: ignore[method-assign]
    world.waiting.read_oldest = look  # type: ignore[method-assign]
    started_ms = world.clock.ms
    assert world.poll()[0] is End.POLL_MATCHED
    assert (world.clock.ms, asked, world.pools.proxies) == (started_ms, [True], {})


@pytest.mark.parametrize("held_min", [0, 4])
def test_an_offer_that_waits_for_the_other_pool_is_not_taken(held_min: int) -> None:
    world = World(held_min=held_min)
    world.waiting.add([world.offer(nat=Nat.RESTRICTED)])
    assert world.poll(poll(nat=Nat.RESTRICTED))[1]["Status"] == "no match"
    assert len(world.waiting.offers) == 1


def test_an_offer_that_others_take_first_leaves_the_next_one() -> None:
    world = World(held_min=0)
    offers = [world.offer(client_id) for client_id in ("a", "b")]
    world.waiting.add(offers)
    world.waiting.read_oldest = lambda pool, **_: offers  # type: ignore[method-assign]
    assert world.waiting.take(offers[0])
    assert world.poll()[1]["Offer"] == "offer of b"


def test_an_offer_is_given_back_where_the_poll_was_matched_meanwhile() -> None:
    world = World()
    enter = world.pools.add_proxy

    def enter_and_be_found(proxy: WaitingProxy) -> None:
        enter(proxy)
        assert world.broker_gives(world.offer("first"))

    world.pools.add_proxy = enter_and_be_found  # type: ignore[method-assign]
    world.waiting.add([world.offer("second")])
    metric, body = world.poll()
    assert (metric, body["Offer"]) == (End.POLL_MATCHED, "offer of first")
    assert [offer.record.client_id for offer in world.waiting.offers.values()] == ["second"]


@pytest.mark.parametrize("refused", [None, CallFailed("DeleteMessage", "AccessDenied", ""), QueueGone("snowflake")])
def test_the_message_of_an_offer_that_waited_is_deleted_once_it_is_answered(refused: Exception | None) -> None:
    world = World(held_min=0, refused=refused)
    world.waiting.add([world.offer()])
    assert world.poll()[0] is End.POLL_MATCHED
    assert world.deleted == []
    assert world.answer()
    assert world.deleted == ["handle of c"]


def test_an_offer_over_http_has_no_message() -> None:
    world = World(held_min=0)
    world.waiting.add([world.offer(method=OfferMethod.HTTP)])
    assert world.poll()[0] is End.POLL_MATCHED
    world.answer()
    assert world.deleted == []


def test_the_message_of_an_offer_that_a_broker_matched_is_its_triggers() -> None:
    world = World()
    world.meanwhile(lambda: world.broker_gives(world.offer()))
    assert world.poll()[0] is End.POLL_MATCHED
    assert world.answer()
    assert world.deleted == []


# How many are held, and whose turn it is


def test_a_poll_is_sent_away_at_once_where_the_allowance_is_spent() -> None:
    world = World(held_min=1)
    world.pace.hours[world.clock.ms // HOUR_MS] = Counts({"held_ms": DAY_MS})
    started_ms = world.clock.ms
    metric, body = world.poll()
    assert (metric, body["NextPoll"]) == (End.POLL_DEFERRED, 20_000)
    assert (world.clock.ms, world.pools.proxies, world.mailboxes.notes) == (started_ms, {}, {})


def test_offers_add_to_the_allowance() -> None:
    world = World(held_min=0)
    world.pace.hours[world.clock.ms // HOUR_MS] = Counts({"offers": 1_000})
    assert world.poll()[0] is End.POLL_IDLE


def test_where_many_poll_none_is_held_and_each_is_told_to_come_so_seldom_that_five_come_a_second() -> None:
    world = World()
    world.polled_lately(Counts({"unrestricted_promised_ms": 320 * MINUTE_MS // 2, "unrestricted_polls": 480}))
    metric, body = world.poll()
    assert metric is End.POLL_DEFERRED
    assert 55_000 <= body["NextPoll"] <= 75_000
    assert world.poll(poll(nat=Nat.RESTRICTED))[1]["NextPoll"] == 20_000


def test_a_poll_that_got_nothing_is_counted_by_how_long_it_is_away() -> None:
    world = World()
    world.poll()
    world.pacing.flush_counts()
    [minute], [hour] = world.pace.minutes.values(), world.pace.hours.values()
    assert (minute.numbers, len(minute.groups)) == (
        {"unrestricted_promised_ms": HOLD_MS + 20_000, "unrestricted_polls": 1},
        1,
    )
    assert hour.numbers == {"held_ms": HOLD_MS}


def test_an_address_that_polls_before_its_turn_takes_an_offer_only_when_that_is_old() -> None:
    world = World()
    world.polled_lately(Counts({"unrestricted_offers": 1}, frozenset(range(CROWD))))
    assert world.poll()[0] is End.POLL_IDLE
    world.waiting.add([world.offer()])
    assert world.poll()[0] is End.POLL_DEFERRED
    world.clock.ms += 3_500
    assert world.poll()[0] is End.POLL_MATCHED


def test_an_address_whose_turn_it_is_takes_an_offer_at_once() -> None:
    world = World()
    world.polled_lately(Counts({"unrestricted_offers": 1}, frozenset(range(CROWD))))
    world.waiting.add([world.offer()])
    assert world.poll()[0] is End.POLL_MATCHED


# Mailboxes


def test_an_environment_keeps_its_mailbox_for_an_hour() -> None:
    world = World()
    first = world.mailbox.get_url()
    assert world.mailbox.get_url() == first
    world.clock.ms += USED_FOR_MS
    assert world.mailbox.get_url() != first
    assert len(world.mailboxes.notes) == 2


def test_a_mailbox_that_has_vanished_ends_the_poll_and_is_made_anew_next_time() -> None:
    world = World()
    first = world.mailbox.get_url()
    world.clock.ms += MINUTE_MS
    world.queues.made.clear()
    assert world.poll()[0] is End.POLL_IDLE
    assert world.pools.proxies == {}
    assert world.mailbox.get_url() != first


def test_a_poll_that_is_matched_when_its_mailbox_has_vanished_is_lost_without_another_look() -> None:
    world = World()
    world.mailbox.get_url()
    world.clock.ms += MINUTE_MS
    receive, asked = world.queues.receive, list[str]()

    def vanished(url: str, *, wait_s: int) -> str | None:
        asked.append(url)
        world.queues.made.clear()
        [proxy] = world.pools.proxies.values()
        world.offers.match(world.offer(), proxy, now_ms=world.clock.ms)
        return receive(url, wait_s=wait_s)

    world.queues.receive = vanished  # type: ignore[method-assign]
    assert world.poll()[0] is End.POLL_LOST
    assert len(asked) == 1


def test_a_mailbox_that_is_not_there_at_first_is_used_once_it_is() -> None:
    world = World()
    world.queues.appears_after_ms = 1000
    started_ms = world.clock.ms
    assert world.poll()[0] is End.POLL_IDLE
    assert world.clock.ms - started_ms == HOLD_MS
    assert len(world.mailboxes.notes) == 1


# Answers


def test_an_answer_reaches_its_client_once() -> None:
    world = World()
    world.match(world.offer())
    assert [world.answer() for _ in range(2)] == [True, False]
    assert world.queues.queues[url("snowflake-client-c")] == ['{"answer":"a"}']


@pytest.mark.parametrize("has_waited", [False, True])
def test_an_answer_to_the_environment_that_gave_the_offer_needs_no_look_at_its_match(has_waited: bool) -> None:
    world = World()
    if has_waited:
        world.waiting.add([world.offer()])
    else:
        world.meanwhile(lambda: world.broker_gives(world.offer()))
    world.poll()
    world.offers.polls.clear()
    assert [world.answer() for _ in range(2)] == [True, False]
    assert world.deleted == (["handle of c"] if has_waited else [])


def test_a_letter_of_an_earlier_version_says_nothing_of_the_answer_which_looks_at_the_match() -> None:
    world = World()
    send = world.queues.send

    def send_less(url: str, body: str, **more: Any) -> None:
        said = {name: text for name, text in json.loads(body).items() if name in {"for", "offer", "nat", "relay"}}
        send(url, json.dumps(said) if "for" in said else body, **more)

    world.queues.send = send_less  # type: ignore[method-assign]
    world.meanwhile(lambda: world.broker_gives(world.offer()))
    assert world.poll()[0] is End.POLL_MATCHED
    assert world.answer()


def test_an_environment_remembers_a_hundred_matches() -> None:
    world = World(held_min=0)
    for number in range(MAX_MATCHES + 1):
        world.waiting.add([world.offer(f"c{number}")])
        world.poll(replace(poll(), sid=f"s{number}"))
    world.offers.polls.clear()
    answers = [replace(ANSWER, sid=f"s{number}") for number in (0, 1, MAX_MATCHES)]
    ends = [world.volunteers.answer(answer, address=ADDRESS) for answer in answers]
    assert ends == [End.ANSWER_TOO_LATE, End.ANSWER_DELIVERED, End.ANSWER_DELIVERED]


def test_an_answer_to_a_client_over_http_goes_to_the_mailbox_that_waits_for_it() -> None:
    world = World()
    world.match(world.offer(method=OfferMethod.HTTP))
    assert world.answer()
    assert json.loads(world.queues.queues[url("snowflake-client-c")][0]) == {"for": "c", "answer": "a"}


def test_an_answer_from_a_stranger_is_too_late() -> None:
    assert not World().answer()


@pytest.mark.parametrize(("after_ms", "taken"), [(PATIENCE_MS - 1, True), (PATIENCE_MS, False)])
def test_an_answer_is_taken_until_the_clients_time_is_over(after_ms: int, taken: bool) -> None:
    world = World()
    world.match(world.offer())
    world.clock.ms += after_ms
    assert world.answer() is taken
    assert len(world.queues.queues[url("snowflake-client-c")]) == int(taken)


def test_an_answer_whose_client_is_swept_is_too_late() -> None:
    world = World()
    world.match(world.offer())
    world.queues.made.clear()
    assert not world.answer()


def test_an_answer_queue_that_is_not_there_at_first_gets_its_answer() -> None:
    world = World()
    world.queues.appears_after_ms = 1000
    world.match(world.offer())
    assert world.answer()
    assert world.queues.queues[url("snowflake-client-c")] == ['{"answer":"a"}']


def test_an_answer_that_cannot_be_sent_is_tried_until_the_clients_time_is_over() -> None:
    world = World()
    world.match(world.offer())
    started_ms = world.clock.ms
    world.queues.failing[url("snowflake-client-c")] = CallFailed("SendMessage", "InternalError", "later")
    with pytest.raises(CallFailed):
        world.answer()
    assert PATIENCE_MS - 500 <= world.clock.ms - started_ms <= PATIENCE_MS


def test_who_asks_a_mailbox_that_has_vanished_is_told_so() -> None:
    world = World()
    world.mailbox.get_url()
    world.clock.ms += MINUTE_MS
    world.queues.made.clear()
    for _ in range(2):
        with pytest.raises(QueueGone):
            world.mailbox.receive_for("p", until_ms=world.clock.ms)
