"""Deletes queues and waiting offers that are old enough, with one `DeleteQueue` per queue.

The sweep reads every offer anyway, so it also stores the end of offers that nobody answered.
"""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.errors import CallFailed
from sluice.operations import QueueDepth
from sluice.rendezvous.broker import RendezvousDependencies
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.operations import RendezvousView, ShowRendezvous
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS, OfferMethod, OfferRecord
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX

if TYPE_CHECKING:  # only for type hints: a shell gets its adapters as arguments
    from sluice.aws.rendezvous.waiting import DynamoMailboxStore

SHARDS_BEFORE = 2  # factor: demand, and the number of shards, may have been higher a few minutes ago


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep: deleted queues, failed deletions, and ends of offers.

    Few offers over HTTP are counted here: the function with the request stores their end, unless its call fails.
    """

    answer_queues: int = 0
    mailboxes: int = 0
    failed: int = 0
    denied: int = 0
    timed_out: int = 0


class Sweeper(msgspec.Struct, frozen=True, kw_only=True):
    """Runs sweeps. Items that a sweep doesn't reach, or that fail, stay in the stores for the next one.

    `depth` counts the messages of a queue, by its URL.
    """

    site: RendezvousDependencies
    mailboxes: "DynamoMailboxStore"
    executor: Executor
    depth: Callable[[str], QueueDepth]
    answer_prefix: str = ANSWER_QUEUE_PREFIX

    def sweep(self, *, may_go_on: Callable[[], bool], answers_age_ms: int = ANSWER_QUEUE_AGE_MS) -> SweepResult:
        """Delete every queue that is old enough, then its record. Raises `CallFailed` if a store can't be read.

        `may_go_on` returns False when the function's time is nearly up.
        """
        swept, until_ms = SweepResult(), self.site.now_ms() - answers_age_ms
        shards = SHARDS_BEFORE * self.site.pacing.shards()
        pages = self.site.waiting.list_untaken(until_ms=until_ms, shards=shards)
        untaken = {offer: key for page in pages for offer, key in page.items()}
        if not self._sweep_offers(swept, may_go_on, until_ms=until_ms, untaken=untaken):
            return swept
        self.site.waiting.delete(list(untaken.values()))
        for _ in self.site.waiting.delete_expired(self.site.now_ms(), map_concurrently=self.executor.map):
            if not may_go_on():
                return swept
        for mailboxes in self.mailboxes.read_created_before(self.site.now_ms() - SWEPT_AFTER_MS):
            gone = self._delete([name for name, _ in mailboxes])
            self.mailboxes.delete([mailbox for mailbox, is_gone in zip(mailboxes, gone, strict=True) if is_gone])
            swept.mailboxes += sum(gone)
            swept.failed += len(mailboxes) - sum(gone)
            if not may_go_on():
                break
        return swept

    def _sweep_offers(
        self,
        swept: SweepResult,
        may_go_on: Callable[[], bool],
        *,
        until_ms: int,
        untaken: dict[tuple[str, int], Mapping[str, Any]],
    ) -> bool:
        """Delete answer queues, and store the ends of their offers. Returns whether all offers were processed.

        Offers whose queue remains are removed from `untaken`, so that the next sweep still knows that no proxy took
        them.
        """
        for page in self.site.offers.read_sent_before(until_ms):
            # Offers over HTTP have no queue of their own.
            sqs_offers = [offer for offer in page if offer.method is OfferMethod.SQS]
            gone = self._delete([self.answer_prefix + offer.client_id for offer in sqs_offers])
            kept = {offer.key for offer, is_gone in zip(sqs_offers, gone, strict=True) if not is_gone}
            forgotten = [offer for offer in page if offer.key not in kept]
            ended = Counter(self.executor.map(partial(self._end_offer, untaken), forgotten))
            swept.denied += ended[End.OFFER_DENIED]
            swept.timed_out += ended[End.OFFER_TIMED_OUT]
            self.site.offers.delete(forgotten)
            for key in kept:
                untaken.pop(key, None)
            swept.answer_queues += sum(gone)
            swept.failed += len(kept)
            if not may_go_on():
                return False
        return True

    def _end_offer(self, untaken: Container[tuple[str, int]], offer: OfferRecord) -> End | None:
        """Store an offer's end. Returns None if the offer has ended already."""
        end = End.OFFER_DENIED if offer.key in untaken else End.OFFER_TIMED_OUT
        is_open = offer.end is None
        return end if is_open and self.site.offers.end(offer, end, now_ms=self.site.now_ms()) else None

    def _delete(self, names: Sequence[str]) -> list[bool]:
        """Delete the queues concurrently. Returns, for each, whether it is gone."""

        def is_gone(name: str) -> bool:
            try:
                self.site.queues.delete(name)
            except CallFailed:
                return False
            return True

        return list(self.executor.map(is_gone, names))

    def show(self, asked: ShowRendezvous) -> RendezvousView:
        """Return the state of the rendezvous. Raises `CallFailed`, also for a queue that the function may not read."""
        site, now_ms = self.site, self.site.now_ms()
        depths = self.executor.map(self.depth, asked.queues)
        return RendezvousView(
            waiting=site.pools.count(now_ms=now_ms, shards=site.pacing.shards()),
            recent_offers=site.offers.count_recent_states(now_ms=now_ms),
            depths=dict(zip(asked.queues, depths, strict=True)),
        )
