"""Offers over SQS: one proxy each at most, and something to hear, whatever is delivered twice, late, or fails."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.errors import CallFailed
from sluice.message import Message, Value
from sluice.rendezvous.broker import CANDIDATES, CLIENT_ID, Broker
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import HOLD_MS, PATIENCE_MS, OfferRecord, OpenOffer, Pool, WaitingProxy
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    DEFAULT_FINGERPRINT,
    index_by_fingerprint,
    parse_bridges,
)
from tests.fakes import Clock, FakeOfferStore, FakePools, Meeting, url
from tests.federation_fakes import Inline

RELAY = "wss://relay.example/"
BRIDGES = index_by_fingerprint(
    parse_bridges(json.dumps({"displayName": "d", "webSocketAddress": RELAY, "fingerprint": DEFAULT_FINGERPRINT}))
)
DESCRIPTION = json.dumps({"type": "offer", "sdp": "v=0"})
THROTTLED = CallFailed("SendMessage", "RequestThrottled", "slow down")


@dataclass
class World(Meeting):
    """A broker and all it talks to."""

    @classmethod
    def beside(cls, other: Meeting) -> "World":
        """The broker of a site that another function's world is of."""
        return cls(other.clock, other.pools, other.offers, other.waiting, other.pace, other.queues)

    def broker(self) -> Broker:
        return Broker(site=self.dependencies(), bridges=BRIDGES)

    def serve(self, *messages: Message) -> list[End | Exception | None]:
        """What becomes of a batch, whose messages are served one after the other."""
        with ThreadPoolExecutor(1) as executor:
            return self.broker().serve(messages, executor=executor)

    def proxy(self, name: str, *, pool: Pool = Pool.UNRESTRICTED, clients: int = 0) -> WaitingProxy:
        proxy = WaitingProxy(
            poll_id=f"poll-{name}",
            sid=name,
            pool=pool,
            clients=clients,
            polled_at_ms=self.clock.ms,
            mailbox=self.queues.create(f"mailbox-{name}", {}),
        )
        self.pools.add_proxy(proxy)
        return proxy

    def replies(self, client_id: str) -> list[dict[str, str]]:
        """Those that are there at once."""
        return [json.loads(body) for body in self.queues.queues[url(ANSWER_QUEUE_PREFIX + client_id)]]

    def hears_at_last(self, client_id: str) -> list[tuple[int, str]]:
        """What a client hears if nobody answers, after how many seconds."""
        delayed = self.queues.delayed[url(ANSWER_QUEUE_PREFIX + client_id)]
        return sorted((delay_s, json.loads(body)["error"]) for delay_s, body in delayed)

    def letters(self, name: str) -> list[dict[str, str]]:
        return [json.loads(body) for body in self.queues.queues[url(f"mailbox-{name}")]]


def post(client_id: str = "c1", *, sent_at_ms: int = Clock.ms, nat: str = "unknown", receives: int = 1) -> Message:
    body = "1.0\n" + json.dumps({"offer": DESCRIPTION, "nat": nat})
    return sent(body, client_id=client_id, sent_at_ms=sent_at_ms, receives=receives)


def sent(body: str, *, client_id: str = "c1", sent_at_ms: int = Clock.ms, receives: int = 1) -> Message:
    """An offer's message as Lambda gives it."""
    system = {"SentTimestamp": str(sent_at_ms), "ApproximateReceiveCount": str(receives)}
    attributes = {CLIENT_ID: Value("String", client_id)}
    return Message(message_id="id", body=body, attributes=attributes, system=system)


def test_a_matched_offer_is_in_the_proxys_mailbox_and_its_client_hears_when_nobody_answers() -> None:
    world = World()
    world.proxy("p")
    assert world.serve(post()) == [End.OFFER_MATCHED]
    given = {"for": "poll-p", "offer": DESCRIPTION, "nat": "unknown", "relay": RELAY}
    assert world.letters("p") == [given | matched(world).for_answer]
    assert (world.replies("c1"), world.hears_at_last("c1")) == ([], [(25, End.OFFER_TIMED_OUT.reply)])
    assert (world.pools.proxies, world.waiting.offers) == ({}, {})


@pytest.mark.parametrize("late_ms", [0, 1, 700, 999, 1000, 2500, 4900])
def test_a_late_reader_finds_only_the_answer_while_one_is_accepted_and_for_five_seconds_more(late_ms: int) -> None:
    world = World()
    world.proxy("p")
    world.clock.ms += late_ms
    sent_at_ms = world.clock.ms - late_ms
    world.serve(post(sent_at_ms=sent_at_ms))
    [(delay_s, _)] = world.hears_at_last("c1")
    answers_until_ms = matched(world).answers_until_ms
    assert answers_until_ms == sent_at_ms + 20_000
    assert answers_until_ms + 5_000 <= world.clock.ms + 1000 * delay_s < answers_until_ms + 6_000


def matched(world: World) -> OpenOffer:
    """The one offer that a proxy was given."""
    [(_, offer, _)] = world.offers.polls.values()
    assert offer is not None
    return offer


def test_without_a_proxy_the_offer_waits_and_is_denied_when_its_message_is_redelivered() -> None:
    world = World()
    world.proxy("p", pool=Pool.RESTRICTED)
    ends = world.serve(post())
    assert ends == [End.OFFER_WAITING]
    assert world.broker().list_redeliveries([post()], ends) == {0: 5}
    assert (world.replies("c1"), world.hears_at_last("c1")) == ([], [])
    [waiting] = world.waiting.offers.values()
    assert (waiting.record.client_id, waiting.offer, waiting.relay) == ("c1", DESCRIPTION, RELAY)
    world.clock.ms += PATIENCE_MS
    ends = world.serve(post(receives=2))
    assert (ends, world.broker().list_redeliveries([post()], ends)) == ([End.OFFER_DENIED], {})
    assert (world.replies("c1"), world.waiting.offers) == ([{"error": End.OFFER_DENIED.reply}], {})
    assert [record.end for record in world.offers.offers.values()] == [End.OFFER_DENIED]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_client_whose_offer_a_poll_took_is_not_denied(is_answered: bool) -> None:
    world = World()
    world.serve(post())
    [waiting] = world.waiting.offers.values()
    assert world.waiting.take(waiting)
    assert world.offers.match(waiting, world.proxy("p"), now_ms=world.clock.ms)
    if is_answered:
        assert world.offers.answer("p", token="t", now_ms=world.clock.ms) is not None
    world.clock.ms += PATIENCE_MS
    assert world.serve(post(receives=2)) == [None]
    assert world.replies("c1") == []
    assert world.hears_at_last("c1") == ([] if is_answered else [(20, End.OFFER_TIMED_OUT.reply)])


def test_an_offer_is_taken_from_where_it_waits_though_the_demand_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(Pacing, "count_shards", lambda _: 7)
    world.serve(post())
    [waiting] = world.waiting.offers.values()
    monkeypatch.setattr(Pacing, "count_shards", lambda _: 1)
    world.clock.ms += PATIENCE_MS
    take, taken = world.waiting.take, list[int]()
    world.waiting.take = lambda offer: bool(taken.append(offer.shard)) or take(offer)  # type: ignore[method-assign,func-returns-value]
    world.serve(post(receives=2))
    assert (taken, waiting.shard > 0) == ([waiting.shard], True)


def test_a_proxy_that_comes_before_the_offer_waits_is_found() -> None:
    world = World()
    put = world.waiting.add

    def put_late(offers: Sequence[OpenOffer]) -> None:
        world.proxy("late")
        put(offers)

    world.waiting.add = put_late  # type: ignore[method-assign]
    assert world.serve(post()) == [End.OFFER_MATCHED]
    assert (len(world.letters("late")), world.waiting.offers) == (1, {})


def test_a_client_hears_though_its_answer_queue_is_not_there_at_first() -> None:
    world = World()
    world.queues.appears_after_ms = 1000
    assert world.serve(post()) == [End.OFFER_WAITING]
    world.clock.ms += PATIENCE_MS
    assert world.serve(post(receives=2)) == [End.OFFER_DENIED]
    assert world.replies("c1") == [{"error": End.OFFER_DENIED.reply}]


class Died(BaseException):
    """The function's process, at that call."""


class DeadlyPools(FakePools):
    """Whoever asks them the second time dies."""

    def read_waiting(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = True
    ) -> Sequence[WaitingProxy]:
        self.questions += 1
        if self.questions > 1:
            raise Died
        return []


def test_a_client_whose_broker_dies_hears_in_the_end() -> None:
    """The answer queue is there by then; the offer comes again after its visibility timeout of a minute."""
    world = World(pools=DeadlyPools(), executor=Inline())
    with pytest.raises(Died):
        world.serve(post())
    world.clock.ms += 60_000
    assert world.serve(post(receives=2)) == [End.OFFER_DENIED]
    assert world.replies("c1") == [{"error": End.OFFER_DENIED.reply}]


def test_an_unrestricted_client_takes_from_the_restricted_pool_first() -> None:
    world = World()
    world.proxy("u")
    world.proxy("r", pool=Pool.RESTRICTED, clients=9)
    world.serve(post(nat="unrestricted"))
    assert len(world.letters("r")) == 1
    world.serve(post("c2", nat="unrestricted"))
    assert len(world.letters("u")) == 1


def test_the_proxy_with_the_fewest_clients_goes_first() -> None:
    world = World()
    for name, clients in (("a", 16), ("b", 0), ("c", 8)):
        world.proxy(name, clients=clients)
    for number, name in enumerate("bca"):
        world.serve(post(f"c{number}"))
        assert len(world.letters(name)) == 1


def test_a_malformed_offer_still_gets_its_queue_and_its_error() -> None:
    world = World()
    world.proxy("p")
    malformed = sent("2.0\n{}")
    assert world.serve(malformed) == [End.OFFER_REFUSED]
    assert world.replies("c1") == [{"error": "unsupported message version"}]
    assert (len(world.pools.proxies), world.hears_at_last("c1")) == (1, [])
    assert [record.end for record in world.offers.offers.values()] == [End.OFFER_REFUSED]


@pytest.mark.parametrize("client_id", ["", "a/b", "x" * 64])
def test_without_a_valid_client_id_nothing_is_created(client_id: str) -> None:
    world = World()
    assert world.serve(post(client_id)) == [End.OFFER_ANONYMOUS]
    assert (world.queues.made, world.offers.offers) == (set(), {})


def test_an_offer_whose_client_has_given_up_takes_no_proxy() -> None:
    world = World()
    world.proxy("p")
    world.clock.ms += PATIENCE_MS
    assert world.serve(post()) == [End.OFFER_STALE]
    assert (len(world.pools.proxies), world.offers.offers) == (1, {})


def test_one_that_comes_again_too_late_is_noted_so_that_its_queue_is_swept() -> None:
    world = World()
    world.clock.ms += 60_000
    assert world.serve(post(receives=2)) == [End.OFFER_STALE]
    assert len(world.offers.offers) == 1


@pytest.mark.parametrize("proxies", [0, 1])
def test_an_offer_that_is_delivered_again_has_one_proxy_and_one_reply(proxies: int) -> None:
    world = World()
    for number in range(proxies):
        world.proxy(f"p{number}")
    outcomes = [world.serve(post()) for _ in range(3)]
    first = End.OFFER_MATCHED if proxies else End.OFFER_WAITING
    assert outcomes == [[first], [End.OFFER_REPEATED], [End.OFFER_REPEATED]]
    assert len(world.hears_at_last("c1")) == proxies
    assert len(world.letters("p0")) + len(world.waiting.offers) == 1


def test_one_that_is_delivered_again_when_it_has_waited_takes_no_proxy() -> None:
    world = World()
    world.serve(post())
    world.proxy("p")
    assert world.serve(post()) == [End.OFFER_REPEATED]
    assert "poll-p" in world.pools.proxies


def test_a_proxy_that_has_given_up_is_not_matched() -> None:
    world = World()
    world.proxy("p")
    world.clock.ms += HOLD_MS
    assert world.serve(post(sent_at_ms=world.clock.ms)) == [End.OFFER_WAITING]


def test_a_proxy_whose_mailbox_is_gone_is_passed_over() -> None:
    world = World()
    gone = world.proxy("gone")
    world.queues.made.remove(gone.mailbox)
    world.proxy("here", clients=1)
    assert world.serve(post()) == [End.OFFER_MATCHED]
    assert len(world.letters("here")) == 1


def test_an_offer_for_which_others_were_faster_waits_for_a_poll() -> None:
    world = World()
    taken = world.proxy("p")
    world.offers.match = lambda *_, **__: False  # type: ignore[method-assign]
    assert world.serve(post()) == [End.OFFER_WAITING]
    assert (world.hears_at_last("c1"), len(world.waiting.offers)) == ([(25, End.OFFER_TIMED_OUT.reply)], 1)
    assert taken.poll_id in world.pools.proxies


@dataclass
class Failing(FakeOfferStore):
    """Fails where it is told to."""

    fails: Callable[[str], bool] = lambda _: False

    def record(self, offer: OfferRecord) -> bool:
        self._may_fail("record")
        return super().record(offer)

    def read(self, offer: OfferRecord, *, consistent: bool) -> OfferRecord | None:
        self._may_fail("read")
        return super().read(offer, consistent=consistent)

    def match(self, offer: OpenOffer, proxy: WaitingProxy, *, now_ms: int, has_waited: bool = False) -> bool:
        self._may_fail("match")
        return super().match(offer, proxy, now_ms=now_ms, has_waited=has_waited)

    def _may_fail(self, what: str) -> None:
        if self.fails(what):
            raise THROTTLED


CALLS = ("record", "read", "match", "create", "send to client", "send to mailbox", "put", "waiting")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("failing", CALLS)
@pytest.mark.parametrize("proxies", [0, 1])
def test_a_client_hears_whatever_call_fails(proxies: int, failing: str, times: int) -> None:
    """All of botocore's attempts, each time."""
    left = [times]

    def fails(what: str) -> bool:
        if what != failing or not left[0]:
            return False
        left[0] -= 1
        return True

    def failing_at(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            of = f"send to {'client' if 'client' in given[0] else 'mailbox'}" if what == "send" else what
            if fails(of):
                raise THROTTLED
            return call(*given, **named)

        return made

    world = World(offers=Failing(fails=fails))
    for number in range(proxies):
        world.proxy(f"p{number}")
    world.queues.create = failing_at("create", world.queues.create)  # type: ignore[method-assign]
    world.queues.send = failing_at("send", world.queues.send)  # type: ignore[method-assign]
    world.waiting.add = failing_at("put", world.waiting.add)  # type: ignore[method-assign]
    world.pools.read_waiting = failing_at("waiting", world.pools.read_waiting)  # type: ignore[method-assign]
    [outcome] = world.serve(post())
    assert isinstance(outcome, End)
    if outcome is End.OFFER_MATCHED:
        assert [text for _, text in world.hears_at_last("c1")] == [End.OFFER_TIMED_OUT.reply]
        return
    world.clock.ms = Clock.ms + PATIENCE_MS
    left[0] = times
    [outcome] = world.serve(post(receives=2))
    assert isinstance(outcome, End)
    assert world.replies("c1") == [{"error": End.OFFER_DENIED.reply}]
    assert world.clock.ms < Clock.ms + 6_000


def test_a_message_that_fails_for_good_fails_alone() -> None:
    world = World()
    for name in "pq":
        world.proxy(name)
    world.queues.failing[url(ANSWER_QUEUE_PREFIX + "c1")] = CallFailed("SendMessage", "AccessDenied", "no")
    outcomes = world.serve(post("c2"), post("c1"))
    assert [type(outcome) for outcome in outcomes] == [End, CallFailed]


def test_two_hundred_offers_at_once_over_a_hundred_proxies() -> None:
    world = World()
    for number in range(100):
        world.proxy(f"p{number}")
    batches = [[post(f"c{batch}-{number}") for number in range(10)] for batch in range(20)]
    with ThreadPoolExecutor(8) as threads, ThreadPoolExecutor(40) as executor:
        outcomes = list(threads.map(lambda each: world.broker().serve(each, executor=executor), batches))
    counted = [each for outcome in outcomes for each in outcome]
    assert (counted.count(End.OFFER_MATCHED), counted.count(End.OFFER_WAITING)) == (100, 100)
    assert all(len(world.letters(f"p{number}")) == 1 for number in range(100))


def test_a_batch_over_an_empty_pool_asks_it_twice() -> None:
    """Once for a proxy, and once more when all of them wait."""
    world = World()
    assert world.serve(*(post(f"c{number}") for number in range(10))) == 10 * [End.OFFER_WAITING]
    assert world.pools.questions == 2


def test_demand_is_counted_for_the_pool_that_was_wanted_first() -> None:
    world = World()
    world.serve(post("a"), post("b", nat="unrestricted"), post("c", nat="restricted"))
    world.pacing.flush_counts()
    [counts] = world.pace.minutes.values()
    assert counts.numbers == {"unrestricted_offers": 2, "restricted_offers": 1}
    assert [counts.numbers for counts in world.pace.hours.values()] == [{"offers": 3}]


def test_more_candidates_than_are_read_at_once_are_asked_for_again() -> None:
    world = World()
    for number in range(3 * CANDIDATES):
        world.proxy(f"p{number}")
    waiting = world.pools.read_waiting

    def few(pool: Pool, **asked: Any) -> Sequence[WaitingProxy]:
        return waiting(pool, **asked)[:CANDIDATES]

    world.pools.read_waiting = few  # type: ignore[method-assign]
    offers = [post(f"c{number}") for number in range(2 * CANDIDATES)]
    assert world.serve(*offers) == 2 * CANDIDATES * [End.OFFER_MATCHED]
