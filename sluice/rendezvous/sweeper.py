"""Sweeps: deletes old queues and waiting offers, and stores the end of offers that nobody answered."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sluice.errors import CallFailed
from sluice.operations import QueueDepth
from sluice.rendezvous.broker import RendezvousDependencies
from sluice.rendezvous.mailbox import SWEPT_AFTER_MS
from sluice.rendezvous.operations import RendezvousView, ShowRendezvous, SweepView
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS, OfferMethod, OfferRecord
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.rendezvous.waiting import DynamoMailboxStore

T = TypeVar("T")
R = TypeVar("R")

SHARDS_BEFORE = 2  # A few minutes ago, demand and so the number of shards may have been twice as high.


class Sweeper(msgspec.Struct, frozen=True, kw_only=True):
    """Runs sweeps. Items that a sweep doesn't reach or can't delete stay in the stores for the next sweep.

    `depth` returns the numbers of messages of the queue with this URL.
    """

    site: RendezvousDependencies
    mailboxes: "DynamoMailboxStore"
    executor: Executor
    depth: Callable[[str], QueueDepth]
    answer_prefix: str = ANSWER_QUEUE_PREFIX

    def sweep(self, *, may_go_on: Callable[[], bool], answers_age_ms: int = ANSWER_QUEUE_AGE_MS) -> SweepView:
        """Delete the queues that are old enough, then their records. Raises `CallFailed` if a store can't be read.

        `may_go_on` returns False when the function's time is nearly up.
        """
        swept: Counter[str] = Counter()
        until_ms = self.site.now_ms() - answers_age_ms
        shards = SHARDS_BEFORE * self.site.pacing.count_shards()
        pages = self.site.waiting.list_untaken(until_ms=until_ms, shards=shards)
        untaken = {offer: key for page in pages for offer, key in page.items()}
        if not self._sweep_offers(swept, may_go_on, until_ms=until_ms, untaken=untaken):
            return SweepView(**swept)
        self.site.waiting.delete(list(untaken.values()))
        now_ms = self.site.now_ms()
        for keys in self.site.waiting.read_expired(now_ms):
            deleted = self._call_for_each(partial(self.site.waiting.delete_expired, now_ms=now_ms), keys)
            swept["failed"] += len(keys) - len(deleted)
            if not may_go_on():
                return SweepView(**swept)
        for mailboxes in self.mailboxes.read_created_before(now_ms - SWEPT_AFTER_MS):
            calls = self._call_for_each(lambda mailbox: self.site.queues.delete(mailbox[0]), mailboxes)
            gone = [mailbox for mailbox, _ in calls]
            self.mailboxes.delete(gone)
            swept["mailboxes"] += len(gone)
            swept["failed"] += len(mailboxes) - len(gone)
            if not may_go_on():
                break
        return SweepView(**swept)

    def _sweep_offers(
        self,
        swept: Counter[str],
        may_go_on: Callable[[], bool],
        *,
        until_ms: int,
        untaken: dict[tuple[str, int], Mapping[str, Any]],
    ) -> bool:
        """Delete answer queues, and store the ends of their offers. Returns whether all offers were processed.

        Offers that couldn't be processed are removed from `untaken`, so that their items stay and the next sweep knows
        that no proxy took these offers.
        """
        for page in self.site.offers.read_sent_before(until_ms):
            ends = self._call_for_each(partial(self._end_offer, untaken), page)
            forgotten = [offer for offer, _ in ends]
            self.site.offers.delete(forgotten)
            swept["denied"] += sum(end is End.OFFER_DENIED for _, end in ends)
            swept["timed_out"] += sum(end is End.OFFER_TIMED_OUT for _, end in ends)
            swept["answer_queues"] += sum(offer.method is OfferMethod.SQS for offer in forgotten)
            swept["failed"] += len(page) - len(forgotten)
            for key in {offer.key for offer in page} - {offer.key for offer in forgotten}:
                untaken.pop(key, None)
            if not may_go_on():
                return False
        return True

    def _end_offer(self, untaken: Container[tuple[str, int]], offer: OfferRecord) -> End | None:
        """Delete an offer's answer queue and store its end. Returns None if it already has one. Raises `CallFailed`."""
        if offer.method is OfferMethod.SQS:  # Offers over HTTP have no answer queue.
            self.site.queues.delete(self.answer_prefix + offer.client_id)
        end = End.OFFER_DENIED if offer.key in untaken else End.OFFER_TIMED_OUT
        is_open = offer.end is None
        return end if is_open and self.site.offers.end(offer, end, now_ms=self.site.now_ms()) else None

    def _call_for_each(self, call: Callable[[T], R], items: Sequence[T]) -> list[tuple[T, R]]:
        """Call a function concurrently with each item. Returns the items and results of calls that didn't fail."""
        begun = [(item, self.executor.submit(call, item)) for item in items]
        return [(item, future.result()) for item, future in begun if not isinstance(future.exception(), CallFailed)]

    def show(self, request: ShowRendezvous) -> RendezvousView:
        """Return the state of the rendezvous. Raises `CallFailed`, also for a queue that the function may not read."""
        site, now_ms = self.site, self.site.now_ms()
        depths = self.executor.map(self.depth, request.queues)
        return RendezvousView(
            waiting=site.pools.count(now_ms=now_ms, shards=site.pacing.count_shards()),
            recent_offers=site.offers.count_recent_states(now_ms=now_ms),
            depths=dict(zip(request.queues, depths, strict=True)),
        )
