"""Offers over SQS: one reply or one proxy each, whatever is delivered twice, late, or at the same time."""

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.broker import Broker, Matchmaker, OfferMessage, OfferMetric, TickArmer, TimeoutTick
from sluice.rendezvous.ports import OfferState
from sluice.rendezvous.protocol.bridges import by_fingerprint, parse_bridges
from sluice.rendezvous.protocol.matching import HOLD_MS, PATIENCE_MS, Pool, WaitingProxy
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, DEFAULT_FINGERPRINT, NO_PROXIES, TIMED_OUT
from tests.fakes import Clock, FakeOfferStore, FakePools, FakeQueues, recorder_of, url

RELAY = "wss://relay.example/"
BRIDGES = by_fingerprint(
    parse_bridges(json.dumps({"displayName": "d", "webSocketAddress": RELAY, "fingerprint": DEFAULT_FINGERPRINT}))
)
DESCRIPTION = json.dumps({"type": "offer", "sdp": "v=0"})


@dataclass
class Batch:
    """A broker with the matchmaker of one batch."""

    broker: Broker
    matchmaker: Matchmaker

    def serve(self, message: OfferMessage) -> OfferMetric:
        return self.broker.serve(message, self.matchmaker)


@dataclass
class World:
    """A broker and all it talks to."""

    clock: Clock = field(default_factory=Clock)
    pools: FakePools = field(default_factory=FakePools)
    ticks: list[tuple[TimeoutTick, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queues = FakeQueues(self.clock)
        self.offers = FakeOfferStore(self.pools)
        self.recorder = recorder_of(self.clock)
        self.armer = TickArmer(lambda tick, delay_s: self.ticks.append((tick, delay_s)), self.clock)

    def broker(self) -> Batch:
        """As for one batch."""
        return Batch(
            Broker(
                offers=self.offers,
                queues=self.queues,
                armer=self.armer,
                bridges=BRIDGES,
                now_ms=self.clock,
                recorder=self.recorder,
            ),
            Matchmaker(
                offers=self.offers,
                pools=self.pools,
                queues=self.queues,
                now_ms=self.clock,
                random=random.Random(1).random,
            ),
        )

    def proxy(self, name: str, *, pool: Pool = Pool.UNRESTRICTED, clients: int = 0) -> WaitingProxy:
        proxy = WaitingProxy(
            poll_id=f"poll-{name}",
            sid=name,
            pool=pool,
            clients=clients,
            polled_at_ms=self.clock.ms,
            mailbox=self.queues.create(f"mailbox-{name}", {}),
        )
        self.pools.enter(proxy)
        return proxy

    def replies(self, client_id: str) -> list[dict[str, str]]:
        return [json.loads(body) for body in self.queues.queues[url(ANSWER_QUEUE_PREFIX + client_id)]]

    def letters(self, name: str) -> list[dict[str, str]]:
        return [json.loads(body) for body in self.queues.queues[url(f"mailbox-{name}")]]


def post(client_id: str = "c1", *, sent_at_ms: int = Clock.ms, nat: str = "unknown") -> OfferMessage:
    body = "1.0\n" + json.dumps({"offer": DESCRIPTION, "nat": nat})
    return OfferMessage(client_id=client_id, body=body, sent_at_ms=sent_at_ms)


def test_a_matched_offer_is_in_the_proxys_mailbox_and_its_answer_queue_exists() -> None:
    world = World()
    world.proxy("p")
    assert world.broker().serve(post()) is OfferMetric.MATCHED
    assert world.letters("p") == [{"for": "poll-p", "offer": DESCRIPTION, "nat": "unknown", "relay": RELAY}]
    assert url("snowflake-client-c1") in world.queues.made
    assert world.replies("c1") == []
    assert world.pools.proxies == {}


def test_without_a_proxy_the_client_hears_so() -> None:
    world = World()
    world.proxy("p", pool=Pool.RESTRICTED)
    assert world.broker().serve(post()) is OfferMetric.DENIED
    assert world.replies("c1") == [{"error": NO_PROXIES}]


@pytest.mark.xfail(
    strict=True,
    raises=QueueGone,
    reason="A queue used within a second of its creation fails: a client gets no reply before its offer comes again",
)
def test_a_client_hears_though_its_answer_queue_is_not_there_at_first() -> None:
    """The offer comes again after its visibility timeout, which is longer than the client's patience."""
    world = World()
    world.queues.appears_after_ms = 1000
    assert world.broker().serve(post()) is OfferMetric.DENIED
    assert world.replies("c1") == [{"error": NO_PROXIES}]


class Died(Exception):
    """The function's process, at that call."""


class DeadlyPools(FakePools):
    """Whoever asks them dies."""

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        raise Died


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A client whose broker dies with its offer hears nothing: the offer comes again when it is too late",
)
def test_a_client_whose_broker_dies_hears_in_the_end() -> None:
    """The answer queue is there by then; the offer comes again after its visibility timeout of a minute."""
    world = World(pools=DeadlyPools())
    with pytest.raises(Died):
        world.broker().serve(post())
    world.clock.ms += 60_000
    assert world.broker().serve(post()) is OfferMetric.STALE
    assert world.replies("c1") == [{"error": TIMED_OUT}]


def test_an_unrestricted_client_takes_from_the_restricted_pool_first() -> None:
    world = World()
    world.proxy("u")
    world.proxy("r", pool=Pool.RESTRICTED, clients=9)
    world.broker().serve(post(nat="unrestricted"))
    assert len(world.letters("r")) == 1
    world.broker().serve(post("c2", nat="unrestricted"))
    assert len(world.letters("u")) == 1


def test_the_proxy_with_the_fewest_clients_goes_first() -> None:
    world = World()
    for name, clients in (("a", 16), ("b", 0), ("c", 8)):
        world.proxy(name, clients=clients)
    broker = world.broker()
    for number, name in enumerate("bca"):
        broker.serve(post(f"c{number}"))
        assert len(world.letters(name)) == 1


def test_a_malformed_offer_still_gets_its_queue_and_its_error() -> None:
    world = World()
    world.proxy("p")
    assert (
        world.broker().serve(OfferMessage(client_id="c1", body="2.0\n{}", sent_at_ms=world.clock.ms))
        is OfferMetric.REFUSED
    )
    assert world.replies("c1") == [{"error": "unsupported message version"}]
    assert len(world.pools.proxies) == 1


@pytest.mark.parametrize("client_id", ["", "a/b", "x" * 64])
def test_without_a_valid_client_id_nothing_is_created(client_id: str) -> None:
    world = World()
    assert world.broker().serve(post(client_id)) is OfferMetric.ANONYMOUS
    assert (world.queues.made, world.offers.offers) == (set(), {})


def test_an_offer_whose_client_has_given_up_takes_no_proxy() -> None:
    world = World()
    world.proxy("p")
    world.clock.ms += PATIENCE_MS
    assert world.broker().serve(post()) is OfferMetric.STALE
    assert len(world.pools.proxies) == 1


def test_a_redelivered_offer_takes_one_proxy_and_is_handed_over_again() -> None:
    world = World()
    world.proxy("p")
    world.proxy("q")
    assert [world.broker().serve(post()) for _ in range(2)] == [OfferMetric.MATCHED, OfferMetric.REPEATED]
    assert len(world.pools.proxies) == 1
    assert sorted(len(world.letters(name)) for name in "pq") == [0, 2]


@pytest.mark.parametrize("state", [OfferState.ANSWERED, OfferState.TIMED_OUT])
def test_an_offer_redelivered_after_its_end_is_dropped(state: OfferState) -> None:
    world = World()
    proxy = world.proxy("p")
    world.broker().serve(post())
    if state is OfferState.ANSWERED:
        assert world.offers.answer(proxy.sid) is not None
    else:
        assert world.offers.time_out(next(iter(world.offers.offers.values())))
    world.proxy("q")
    assert world.broker().serve(post()) is OfferMetric.REPEATED
    assert "poll-q" in world.pools.proxies


def test_a_proxy_that_has_given_up_is_not_matched() -> None:
    world = World()
    world.proxy("p")
    world.clock.ms += HOLD_MS
    assert world.broker().serve(post(sent_at_ms=world.clock.ms)) is OfferMetric.DENIED


def test_a_proxy_whose_mailbox_is_gone_is_passed_over() -> None:
    world = World()
    gone = world.proxy("gone")
    world.queues.made.remove(gone.mailbox)
    world.proxy("here", clients=1)
    assert world.broker().serve(post()) is OfferMetric.MATCHED
    assert len(world.letters("here")) == 1


def test_a_matched_offer_has_a_tick_and_a_denied_one_has_none() -> None:
    world = World()
    world.broker().serve(post("denied"))
    assert world.ticks == []
    world.proxy("p")
    world.broker().serve(post("matched"))
    assert [delay_s for _, delay_s in world.ticks] == [PATIENCE_MS // 1000]


def test_what_aws_refuses_is_raised_for_the_record_to_be_reported() -> None:
    world = World()
    world.proxy("p")
    world.queues.failing[url("mailbox-p")] = CallFailed("SendMessage", "AccessDenied", "no")
    with pytest.raises(CallFailed):
        world.broker().serve(post())


def test_two_hundred_offers_at_once_over_a_hundred_proxies() -> None:
    world = World()
    for number in range(100):
        world.proxy(f"p{number}")
    brokers = [world.broker() for _ in range(20)]
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda number: brokers[number // 10].serve(post(f"c{number}")), range(200)))
    assert (outcomes.count(OfferMetric.MATCHED), outcomes.count(OfferMetric.DENIED)) == (100, 100)
    assert all(len(world.letters(f"p{number}")) == 1 for number in range(100))
    assert sum(len(world.replies(f"c{number}")) for number in range(200)) == 100


def test_a_batch_over_an_empty_pool_asks_it_once() -> None:
    world = World()
    broker = world.broker()
    for number in range(10):
        broker.serve(post(f"c{number}"))
    assert world.pools.questions == 1


def test_demand_is_noted_once_a_batch_for_the_pool_that_was_wanted_first() -> None:
    world = World()
    broker = world.broker()
    broker.serve(post("a"))
    broker.serve(post("b", nat="unrestricted"))
    broker.serve(post("c", nat="restricted"))
    broker.matchmaker.note_demand()
    assert world.pools.recent_offers(Pool.UNRESTRICTED, now_ms=world.clock.ms) == 2
    assert world.pools.recent_offers(Pool.RESTRICTED, now_ms=world.clock.ms) == 1
