"""The sweep: one deletion a queue, by creation time alone."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.errors import CallFailed
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.ports import OfferRecord
from sluice.rendezvous.protocol.messages import OfferMethod
from sluice.rendezvous.sweeper import ANSWER_QUEUE_AGE_MS, Sweeper, Swept
from tests.fakes import Clock, FakeMailboxStore, FakeOfferStore, FakePools, FakeQueues, url


class World:
    """A site with leftovers."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.queues = FakeQueues(self.clock)
        self.offers = FakeOfferStore(FakePools())
        self.mailboxes = FakeMailboxStore()

    def offer(self, client_id: str, *, method: OfferMethod = OfferMethod.SQS, with_queue: bool = True) -> None:
        self.offers.record(OfferRecord(client_id=client_id, sent_at_ms=self.clock.ms, method=method))
        if with_queue:
            self.queues.create(f"snowflake-client-{client_id}", {})

    def sweep(self, may_go_on: Sequence[bool] = ()) -> Swept:
        answers = iter(may_go_on)
        with ThreadPoolExecutor(2) as executor:
            return Sweeper(
                offers=self.offers,
                mailboxes=self.mailboxes,
                queues=self.queues,
                executor=executor,
                now_ms=self.clock,
                may_go_on=lambda: next(answers, True),
            ).sweep()


def test_answer_queues_go_after_two_minutes_and_younger_ones_stay() -> None:
    world = World()
    world.offer("old")
    world.clock.ms += ANSWER_QUEUE_AGE_MS
    world.offer("young")
    world.clock.ms += 1
    assert world.sweep() == Swept(answer_queues=1)
    assert world.queues.deleted == ["snowflake-client-old"]
    assert [client_id for client_id, _ in world.offers.offers] == ["young"]


def test_a_queue_that_was_noted_and_never_made_is_forgotten() -> None:
    world = World()
    world.offer("never", with_queue=False)
    world.clock.ms += ANSWER_QUEUE_AGE_MS + 1
    assert world.sweep().failed == 0
    assert world.offers.offers == {}


def test_an_offer_over_http_has_no_queue_to_delete() -> None:
    world = World()
    world.offer("h", method=OfferMethod.HTTP)
    world.clock.ms += ANSWER_QUEUE_AGE_MS + 1
    assert world.sweep() == Swept()
    assert world.offers.offers == {}


def test_what_could_not_be_deleted_is_kept_for_the_next_sweep_and_the_rest_goes() -> None:
    world = World()
    for client_id in ("a", "b", "c"):
        world.offer(client_id)
    world.clock.ms += ANSWER_QUEUE_AGE_MS + 1
    world.queues.failing[url("snowflake-client-b")] = CallFailed("DeleteQueue", "Throttling", "slow down")
    assert world.sweep() == Swept(answer_queues=2, failed=1)
    world.queues.failing.clear()
    assert world.sweep() == Swept(answer_queues=1)
    assert world.offers.offers == {}


def test_mailboxes_go_when_nobody_can_read_them_any_more() -> None:
    world = World()
    world.mailboxes.note("m1", created_at_ms=world.clock.ms)
    world.queues.create("m1", {})
    world.clock.ms += SWEPT_AFTER_MS
    assert world.sweep() == Swept()
    world.clock.ms += 1
    assert world.sweep() == Swept(mailboxes=1)
    assert world.mailboxes.notes == {}


def test_a_sweep_ends_in_time_and_keeps_what_it_did_not_reach() -> None:
    world = World()
    pages = [[OfferRecord(client_id=client_id, sent_at_ms=0, method=OfferMethod.SQS)] for client_id in "ab"]
    world.offers.sent_before = lambda until_ms: iter(pages)  # type: ignore[method-assign]  # two pages
    for [offer] in pages:
        world.queues.create(f"snowflake-client-{offer.client_id}", {})
        world.offers.record(offer)
    assert world.sweep(may_go_on=[False]).answer_queues == 1
    assert [client_id for client_id, _ in world.offers.offers] == ["b"]
