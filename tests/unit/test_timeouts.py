"""Ticks: every unanswered offer is timed out in time, and few ticks do it."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import Malformed
from sluice.rendezvous.broker import LATEST_MS, TickArmer, TimeoutTick
from sluice.rendezvous.ports import OfferRecord, OfferState
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.messages import OfferMethod
from sluice.rendezvous.timeouts import TimeOuts
from tests.fakes import Clock, FakeOfferStore, FakePools, FakeQueues, recorder_of, url


def matched(client_id: str, sent_at_ms: int) -> OfferRecord:
    return OfferRecord(
        client_id=client_id,
        sent_at_ms=sent_at_ms,
        method=OfferMethod.SQS,
        state=OfferState.MATCHED,
        reply_to=url(client_id),
    )


class World:
    """A broker's armer, the time-outs queue, and the function that it triggers, on a clock of their own."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.offers = FakeOfferStore(FakePools())
        self.queues = FakeQueues(self.clock)
        self.due: list[tuple[int, int, TimeoutTick]] = []
        self.ticks = 0
        self.armers = [TickArmer(self.send, self.clock) for _ in range(2)]
        self.recorder = recorder_of(self.clock)
        self.time_outs = TimeOuts(
            offers=self.offers, queues=self.queues, send_tick=self.send, now_ms=self.clock, recorder=self.recorder
        )
        self.timed_out_at: dict[str, int] = {}

    def send(self, tick: TimeoutTick, delay_s: int) -> None:
        self.ticks += 1
        heapq.heappush(self.due, (self.clock.ms + delay_s * 1000, self.ticks, tick))

    def offer(self, client_id: str, *, age_ms: int, armer: int) -> None:
        sent_at_ms = self.clock.ms - age_ms
        record = matched(client_id, sent_at_ms)
        self.offers.offers[client_id, sent_at_ms] = record
        self.queues.made.add(record.reply_to)
        self.armers[armer].cover(sent_at_ms=sent_at_ms)

    def run_until(self, ms: int) -> None:
        while self.due and self.due[0][0] <= ms:
            self.clock.ms, _, tick = heapq.heappop(self.due)
            before = {key for key, offer in self.offers.offers.items() if offer.state is OfferState.TIMED_OUT}
            self.time_outs.handle(TimeoutTick.parse(tick.body()))
            for key, offer in self.offers.offers.items():
                if offer.state is OfferState.TIMED_OUT and key not in before:
                    self.timed_out_at[offer.client_id] = self.clock.ms
        self.clock.ms = ms


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, PATIENCE_MS - 1), st.integers(0, 1), st.booleans())))
def test_every_unanswered_offer_is_timed_out_after_five_seconds_and_within_one_more(
    offers: list[tuple[int, int, int, bool]],
) -> None:
    world = World()
    unanswered = {}
    for number, (pause_ms, age_ms, armer, answered) in enumerate(offers):
        world.run_until(world.clock.ms + pause_ms)
        client_id = f"c{number}"
        sent_at_ms = world.clock.ms - age_ms
        world.offer(client_id, age_ms=age_ms, armer=armer)
        if answered:
            world.offers.time_out(matched(client_id, sent_at_ms))  # out of the way, as an answer would be
            world.timed_out_at.pop(client_id, None)
        else:
            unanswered[client_id] = sent_at_ms
    world.run_until(world.clock.ms + 3 * PATIENCE_MS)
    assert world.timed_out_at.keys() == unanswered.keys()
    for client_id, sent_at_ms in unanswered.items():
        late_ms = world.timed_out_at[client_id] - sent_at_ms - PATIENCE_MS
        # A second more where SQS rounds the delay up.
        assert 0 <= late_ms <= LATEST_MS + 1_000
        assert world.queues.queues[url(client_id)] == ['{"error":"timed out waiting for answer!"}']


def test_a_steady_stream_of_answered_offers_needs_a_tick_every_few_seconds() -> None:
    world = World()
    for number in range(1_000):
        world.run_until(world.clock.ms + 100)
        world.offer(f"c{number}", age_ms=0, armer=0)
        world.offers.offers.clear()
    assert world.ticks <= 30


def test_a_tick_delivered_again_does_nothing() -> None:
    world = World()
    world.offer("c", age_ms=0, armer=0)
    world.clock.ms += PATIENCE_MS
    tick = world.due[0][2]
    assert [world.time_outs.handle(tick), world.time_outs.handle(tick)] == [1, 0]
    assert len(world.queues.queues[url("c")]) == 1


def test_a_client_whose_queue_is_swept_is_not_told() -> None:
    world = World()
    world.offer("c", age_ms=0, armer=0)
    world.queues.made.clear()
    world.clock.ms += PATIENCE_MS
    assert world.time_outs.handle(world.due[0][2]) == 1


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"from": "1"}', '{"from": true}'])
def test_a_foreign_message_is_no_tick(body: str) -> None:
    with pytest.raises(Malformed):
        TimeoutTick.parse(body)
