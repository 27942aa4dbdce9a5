"""Deletes what is left over, by age alone: queues at one `DeleteQueue` each, and offers that nobody took.

It reads every offer anyway, so it is who gives those their end that nobody answered.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import msgspec

from sluice.errors import CallFailed
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
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, OfferMethod

SHARDS_BEFORE = 2  # times as many as now: demand was more a few minutes ago


@dataclass(slots=True)
class Swept:
    """How many queues were deleted, how many could not be and are tried again by the next sweep, and how offers ended.

    Of those over HTTP only few are among these: who has held a request says how it ended, if no call of his failed.
    """

    answer_queues: int = 0
    mailboxes: int = 0
    failed: int = 0
    denied: int = 0
    timed_out: int = 0


class Sweeper(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep. What it doesn't get to, or what fails, is in the stores for the next one."""

    offers: OfferStore
    waiting: WaitingOffers
    mailboxes: MailboxStore
    queues: Queues
    pacing: Pacing
    executor: Executor
    now_ms: NowMs
    may_go_on: Callable[[], bool]  # False when the function's time is nearly up
    answer_prefix: str = ANSWER_QUEUE_PREFIX
    answers_age_ms: int = ANSWER_QUEUE_AGE_MS

    def sweep(self) -> Swept:
        """Delete every queue that is old enough, then its record. Raises `CallFailed` where a store can't be read."""
        swept, until_ms = Swept(), self.now_ms() - self.answers_age_ms
        shards = SHARDS_BEFORE * self.pacing.pace().shards
        pages = self.waiting.left(until_ms=until_ms, shards=shards)
        left = {offer.key: offer for page in pages for offer in page}
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
            gone = self._delete([self.answer_prefix + offer.client_id for offer in mine])
            kept = {offer.key for offer, is_gone in zip(mine, gone, strict=True) if not is_gone}
            forgotten = [offer for offer in page if offer.key not in kept]
            ended = Counter(self.executor.map(partial(self._ended_now, left), forgotten))
            swept.denied += ended[OfferState.DENIED]
            swept.timed_out += ended[OfferState.TIMED_OUT]
            self.offers.forget(forgotten)
            for key in kept:
                left.pop(key, None)
            swept.answer_queues += sum(gone)
            swept.failed += len(kept)
            if not self.may_go_on():
                return False
        return True

    def _ended_now(self, left: Container[tuple[str, int]], offer: OfferRecord) -> OfferState | None:
        """Give an offer its end; None where it has one."""
        was_denied = offer.key in left
        state = OfferState.DENIED if was_denied else OfferState.TIMED_OUT
        is_open = offer.state is OfferState.RECEIVED
        return state if is_open and self.offers.end(offer, state, now_ms=self.now_ms()) else None

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
