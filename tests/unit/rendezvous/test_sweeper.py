"""The sweep: one deletion a queue, by creation time alone, and an end for each offer that nobody answered."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.errors import CallFailed
from sluice.operations import QueueDepth
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.operations import SweepView
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    ANSWER_QUEUE_AGE_MS,
    PATIENCE_MS,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    WaitingProxy,
)
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.protocol.pace import Counts
from sluice.rendezvous.sweeper import SHARDS_BEFORE, Sweeper
from sluice.times import MINUTE_MS
from tests.fakes import FakeMailboxStore, Meeting, url


@dataclass
class World(Meeting):
    """A site with leftovers."""

    mailboxes: FakeMailboxStore = field(default_factory=FakeMailboxStore)

    def offer(
        self,
        client_id: str,
        *,
        method: OfferMethod = OfferMethod.SQS,
        with_queue: bool = True,
        end: End | None = None,
    ) -> OpenOffer:
        record = OfferRecord(client_id=client_id, sent_at_ms=self.clock.ms, method=method, end=end, country="DE")
        self.offers.record(record)
        name = ANSWER_QUEUE_PREFIX + client_id
        return OpenOffer(
            record=record,
            offer="o",
            relay="wss://r/",
            reply_to=self.queues.create(name, {}) if with_queue else url(name),
            answers_until_ms=self.clock.ms + PATIENCE_MS,
        )

    def match(self, offer: OpenOffer, sid: str) -> None:
        proxy = WaitingProxy(poll_id=sid, sid=sid, pool=Pool.UNRESTRICTED, clients=0, polled_at_ms=self.clock.ms)
        assert self.offers.match(offer, proxy, now_ms=self.clock.ms)

    def age(self) -> None:
        self.clock.ms += ANSWER_QUEUE_AGE_MS + 1

    def sweep(self, may_go_on: Sequence[bool] = ()) -> SweepView:
        answers = iter(may_go_on)
        with ThreadPoolExecutor(2) as executor:
            mailboxes: Any = self.mailboxes
            sweeper = Sweeper(
                site=self.dependencies(),
                mailboxes=mailboxes,
                executor=executor,
                depth=lambda _: QueueDepth(visible=0, in_flight=0),
            )
            return sweeper.sweep(may_go_on=lambda: next(answers, True))

    def ends(self) -> dict[str, End]:
        """How offers ended, by their clients."""
        return {client_id: state for (client_id, _), (state, _) in self.offers.ended.items()}


def test_answer_queues_go_after_two_minutes_and_younger_ones_stay() -> None:
    world = World()
    world.offer("old")
    world.clock.ms += ANSWER_QUEUE_AGE_MS
    world.offer("young")
    world.clock.ms += 1
    assert world.sweep() == SweepView(answer_queues=1, timed_out=1)
    assert world.queues.deleted == ["snowflake-client-old"]
    assert [client_id for client_id, _ in world.offers.offers] == ["young"]


def test_a_queue_that_was_noted_and_never_made_is_forgotten() -> None:
    world = World()
    world.offer("never", with_queue=False)
    world.age()
    assert world.sweep().failed == 0
    assert world.offers.offers == {}


def test_what_could_not_be_deleted_is_kept_for_the_next_sweep_and_the_rest_goes() -> None:
    world = World()
    for client_id in ("a", "b", "c"):
        world.offer(client_id)
    world.age()
    world.queues.failing[url("snowflake-client-b")] = CallFailed("DeleteQueue", "Throttling", "slow down")
    assert world.sweep() == SweepView(answer_queues=2, failed=1, timed_out=2)
    world.queues.failing.clear()
    assert world.sweep() == SweepView(answer_queues=1, timed_out=1)
    assert world.offers.offers == {}
    assert len(world.ends()) == 3


def test_mailboxes_go_when_nobody_can_read_them_any_more() -> None:
    world = World()
    world.mailboxes.record("m1", created_at_ms=world.clock.ms)
    world.queues.create("m1", {})
    world.clock.ms += SWEPT_AFTER_MS
    assert world.sweep() == SweepView()
    world.clock.ms += 1
    assert world.sweep() == SweepView(mailboxes=1)
    assert world.mailboxes.notes == {}


# How offers ended


def test_an_offer_that_waited_for_nobody_was_denied_and_one_that_a_proxy_had_timed_out() -> None:
    world = World()
    world.waiting.add([world.offer("denied")])
    world.match(world.offer("timed out"), "s")
    world.age()
    swept = world.sweep()
    assert (swept.denied, swept.timed_out) == (1, 1)
    assert world.ends() == {"denied": End.OFFER_DENIED, "timed out": End.OFFER_TIMED_OUT}


@pytest.mark.parametrize("state", [End.OFFER_REFUSED, End.OFFER_MATCHED])
def test_an_offer_that_was_refused_or_answered_has_no_other_end(state: End) -> None:
    world = World()
    offer = world.offer("c", end=End.OFFER_REFUSED if state is End.OFFER_REFUSED else None)
    if state is End.OFFER_MATCHED:
        world.match(offer, "s")
        assert world.offers.answer("s", token="t", now_ms=world.clock.ms)
    world.age()
    assert world.sweep() == SweepView(answer_queues=1)
    assert world.ends() == ({"c": state} if state is End.OFFER_MATCHED else {})


def test_what_another_sweep_ended_meanwhile_isnt_ended_again() -> None:
    world = World()
    world.waiting.add([world.offer("a")])
    offer = world.offer("b").record
    world.age()
    pages = list(world.offers.read_sent_before(world.clock.ms))
    assert world.offers.end(offer, End.OFFER_TIMED_OUT, now_ms=world.clock.ms)
    world.offers.read_sent_before = lambda until_ms: iter(pages)  # type: ignore[method-assign]  # read before that
    assert world.sweep() == SweepView(answer_queues=2, denied=1)


def test_an_offer_over_http_has_no_queue_to_delete_and_its_end_if_none_could_be_written() -> None:
    world = World()
    world.offers.end(world.offer("amp", method=OfferMethod.AMP_CACHE).record, End.OFFER_DENIED, now_ms=0)
    world.offer("h", method=OfferMethod.HTTP)
    world.age()
    assert world.sweep() == SweepView(timed_out=1)
    assert world.ends() == {"amp": End.OFFER_DENIED, "h": End.OFFER_TIMED_OUT}
    assert world.offers.offers == {}


def test_offers_that_nobody_took_are_forgotten_and_younger_ones_wait_on() -> None:
    world = World()
    world.waiting.add([world.offer("old")])
    world.age()
    world.waiting.add([world.offer("young")])
    world.sweep()
    assert [offer.record.client_id for offer in world.waiting.offers.values()] == ["young"]


def test_an_offer_whose_queue_could_not_be_deleted_is_still_denied_when_it_can() -> None:
    world = World()
    world.waiting.add([world.offer("c")])
    world.age()
    world.queues.failing[url("snowflake-client-c")] = CallFailed("DeleteQueue", "Throttling", "slow down")
    world.sweep()
    world.queues.failing.clear()
    assert world.sweep().denied == 1


def test_a_sweep_ends_in_time_and_keeps_what_it_did_not_reach() -> None:
    world = World()
    offers = [world.offer(client_id) for client_id in "ab"]
    world.waiting.add(offers)
    pages = [[offer.record] for offer in offers]
    world.offers.read_sent_before = lambda until_ms: iter(pages)  # type: ignore[method-assign]  # two pages
    world.age()
    assert world.sweep(may_go_on=[False]) == SweepView(answer_queues=1, denied=1)
    assert [client_id for client_id, _ in world.offers.offers] == ["b"]
    assert len(world.waiting.offers) == 2  # so b is known as denied by the next one


def test_what_has_expired_is_deleted_page_by_page_while_there_is_time() -> None:
    world = World()
    expired_ms = dict.fromkeys("abc", world.clock.ms - 1)
    world.waiting.expired_ms = dict(expired_ms)
    world.sweep()
    assert world.waiting.expired_ms == {}
    world.waiting.expired_ms = expired_ms
    world.sweep([True, False])
    assert len(world.waiting.expired_ms) == 2


def test_an_expired_item_that_cannot_be_deleted_keeps_nothing_else_from_being_swept() -> None:
    world = World()
    world.waiting.expired_ms = dict.fromkeys("abc", world.clock.ms)
    world.waiting.failing = {"a"}
    world.mailboxes.record("m", created_at_ms=world.clock.ms)
    world.queues.create("m", {})
    world.clock.ms += SWEPT_AFTER_MS + 1
    assert world.sweep() == SweepView(failed=1, mailboxes=1)
    assert list(world.waiting.expired_ms) == ["a"]


def test_an_offer_whose_end_cannot_be_stored_keeps_no_other_from_being_swept() -> None:
    world = World()
    for client_id in ("a", "b"):
        world.offer(client_id)
    world.mailboxes.record("m", created_at_ms=world.clock.ms)
    world.queues.create("m", {})
    world.clock.ms += SWEPT_AFTER_MS + 1
    end, failing = world.offers.end, {"a"}

    def fail(offer: OfferRecord, how: End, *, now_ms: int) -> bool:
        if offer.client_id in failing:
            raise CallFailed("UpdateItem", "Throttling", "slow down")
        return end(offer, how, now_ms=now_ms)

    world.offers.end = fail  # type: ignore[method-assign, assignment]
    assert world.sweep() == SweepView(answer_queues=1, failed=1, timed_out=1, mailboxes=1)
    failing.clear()
    assert world.sweep().timed_out == 1
    assert world.offers.offers == {}


def test_offers_are_looked_for_in_as_many_shards_as_there_may_have_been() -> None:
    world, asked = World(), list[int]()
    world.pace.minutes[world.clock.ms // MINUTE_MS - 1] = Counts({"unrestricted_offers": 150 * 60})
    left = world.waiting.list_untaken

    def look(*, until_ms: int, shards: int) -> object:
        asked.append(shards)
        return left(until_ms=until_ms, shards=shards)

    world.waiting.list_untaken = look  # type: ignore[method-assign, assignment]
    world.sweep()
    assert asked == [SHARDS_BEFORE * world.new_pacing().get_pace().shards] == [4]
