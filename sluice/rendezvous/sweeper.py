"""Deletes what is left over, by age alone: queues at one `DeleteQueue` each, and offers that nobody took.

It reads every offer anyway, so it tells of those that ended without an answer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from sluice.errors import CallFailed
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.ports import (
    LeftOffer,
    MailboxStore,
    NowMs,
    OfferRecord,
    OfferState,
    OfferStore,
    Queues,
    WaitingOffers,
)
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, OfferMethod

ANSWER_QUEUE_AGE_MS = 120_000
SHARDS_BEFORE = 2  # times as many as now: demand was more a few minutes ago


@dataclass(slots=True)
class Swept:
    """How many queues were deleted, how many could not be and are tried again by the next sweep, and how offers ended.

    Offers over HTTP aren't among these: who has held their requests has told of them.
    """

    answer_queues: int = 0
    mailboxes: int = 0
    failed: int = 0
    denied: int = 0
    timed_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """One sweep. What it doesn't get to, or what fails, is in the stores for the next one."""

    offers: OfferStore
    waiting: WaitingOffers
    mailboxes: MailboxStore
    queues: Queues
    pacing: Pacing
    recorder: EventRecorder
    executor: Executor
    now_ms: NowMs
    may_go_on: Callable[[], bool]  # False when the function's time is nearly up

    def sweep(self) -> Swept:
        """Delete every queue that is old enough, then its record. Raises `CallFailed` where a store can't be read."""
        swept, until_ms = Swept(), self.now_ms() - ANSWER_QUEUE_AGE_MS
        shards = SHARDS_BEFORE * self.pacing.pace().shards
        pages = self.waiting.left(until_ms=until_ms, shards=shards)
        left = {(offer.client_id, offer.sent_at_ms): offer for page in pages for offer in page}
        if self._sweep_offers(swept, until_ms=until_ms, left=left):
            self.waiting.forget(list(left.values()))
            self._sweep_mailboxes(swept)
        return swept

    def _sweep_offers(self, swept: Swept, *, until_ms: int, left: dict[tuple[str, int], LeftOffer]) -> bool:
        """Delete answer queues, and say how their offers ended. Returns whether all were gone through.

        Those whose queue is still there are taken out of `left`: the next sweep is to know that nobody took them.
        """
        for page in self.offers.sent_before(until_ms):
            # An offer over HTTP has no queue of its own.
            mine = [offer for offer in page if offer.method is OfferMethod.SQS]
            gone = self._delete([ANSWER_QUEUE_PREFIX + offer.client_id for offer in mine])
            kept = {
                (offer.client_id, offer.sent_at_ms) for offer, is_gone in zip(mine, gone, strict=True) if not is_gone
            }
            forgotten = [offer for offer in page if (offer.client_id, offer.sent_at_ms) not in kept]
            self.offers.forget(forgotten)
            for offer in forgotten:
                self._tell(offer, swept, was_denied=(offer.client_id, offer.sent_at_ms) in left)
            for key in kept:
                left.pop(key, None)
            swept.answer_queues += sum(gone)
            swept.failed += len(kept)
            if not self.may_go_on():
                return False
        return True

    def _tell(self, offer: OfferRecord, swept: Swept, *, was_denied: bool) -> None:
        if offer.method is not OfferMethod.SQS or offer.state is not OfferState.RECEIVED:
            return
        if was_denied:
            swept.denied += 1
        else:
            swept.timed_out += 1
        self.recorder.offer_ended(offer, OfferOutcome.DENIED if was_denied else OfferOutcome.TIMEOUT)

    def _sweep_mailboxes(self, swept: Swept) -> None:
        for notes in self.mailboxes.created_before(self.now_ms() - SWEPT_AFTER_MS):
            gone = self._delete([name for name, _ in notes])
            self.mailboxes.forget([note for note, is_gone in zip(notes, gone, strict=True) if is_gone])
            swept.mailboxes += sum(gone)
            swept.failed += len(notes) - sum(gone)
            if not self.may_go_on():
                break

    def _delete(self, names: Sequence[str]) -> list[bool]:
        """Which of the queues are gone."""

        def is_gone(name: str) -> bool:
            try:
                self.queues.delete(name)
            except CallFailed:
                return False
            return True

        return list(self.executor.map(is_gone, names))
