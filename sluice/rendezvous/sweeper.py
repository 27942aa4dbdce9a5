"""Deletes the queues that are left over, by creation time alone: one `DeleteQueue` each and no other request."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from sluice.errors import CallFailed
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.ports import MailboxStore, NowMs, OfferStore, Queues
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, OfferMethod

ANSWER_QUEUE_AGE_MS = 120_000


@dataclass(slots=True)
class Swept:
    """How many queues were deleted, and how many could not be and are tried again by the next sweep."""

    answer_queues: int = 0
    mailboxes: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeper:
    """One sweep. What it doesn't get to, or what fails, is in the stores for the next one."""

    offers: OfferStore
    mailboxes: MailboxStore
    queues: Queues
    executor: Executor
    now_ms: NowMs
    may_go_on: Callable[[], bool]  # False when the function's time is nearly up

    def sweep(self) -> Swept:
        """Delete every queue that is old enough, then its record. Raises `CallFailed` where a store can't be read."""
        swept = Swept()
        for page in self.offers.sent_before(self.now_ms() - ANSWER_QUEUE_AGE_MS):
            # An offer over HTTP has no queue of its own.
            mine = [offer for offer in page if offer.method is OfferMethod.SQS]
            gone = self._delete([ANSWER_QUEUE_PREFIX + offer.client_id for offer in mine])
            kept = {id(offer) for offer, is_gone in zip(mine, gone, strict=True) if not is_gone}
            self.offers.forget([offer for offer in page if id(offer) not in kept])
            swept.answer_queues += sum(gone)
            swept.failed += len(kept)
            if not self.may_go_on():
                break
        for notes in self.mailboxes.created_before(self.now_ms() - SWEPT_AFTER_MS):
            gone = self._delete([name for name, _ in notes])
            self.mailboxes.forget([note for note, is_gone in zip(notes, gone, strict=True) if is_gone])
            swept.mailboxes += sum(gone)
            swept.failed += len(notes) - sum(gone)
            if not self.may_go_on():
                break
        return swept

    def _delete(self, names: Sequence[str]) -> list[bool]:
        """Which of the queues are gone."""

        def is_gone(name: str) -> bool:
            try:
                self.queues.delete(name)
            except CallFailed:
                return False
            return True

        return list(self.executor.map(is_gone, names))
