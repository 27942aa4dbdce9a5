"""Finds an offer's proxy: candidates in order, one conditional write each, the offer into the winner's mailbox."""

import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from sluice.errors import QueueGone
from sluice.rendezvous.ports import Claim, NowMs, OfferBook, OfferRecord, ProxyPools, Queues
from sluice.rendezvous.protocol.matching import Pool, WaitingProxy, in_order, pools_for
from sluice.rendezvous.protocol.offers import Offer

CANDIDATES = 50  # read at once: more than a batch needs, as other brokers take some of them
MAX_CLAIMS = 100  # tried for one offer, of a pool in which everything is being taken


@dataclass(slots=True)
class Candidates:
    """The proxies that one batch of offers may still try, each handed out once. Safe for threads."""

    pools: ProxyPools
    now_ms: NowMs
    random: Callable[[], float]
    _left: dict[Pool, deque[WaitingProxy]] = field(default_factory=dict)
    _handed_out: set[str] = field(default_factory=set)
    _dry: set[Pool] = field(default_factory=set)
    _asked: Counter[Pool] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def note(self, pool: Pool) -> None:
        """Counts an offer that would have this pool's proxies first."""
        with self._lock:
            self._asked[pool] += 1

    def note_demand(self) -> None:
        """Tells the pools how many offers the batch had for them: one write a pool."""
        for pool, number in self._asked.items():
            self.pools.note_offers(pool, number, now_ms=self.now_ms())
        self._asked.clear()

    def next(self, wanted: tuple[Pool, ...]) -> WaitingProxy | None:
        """The next proxy to try from the wanted pools, or None where all have been tried."""
        with self._lock:
            for pool in wanted:
                proxy = self._next_of(pool)
                if proxy is not None:
                    return proxy
        return None

    def _next_of(self, pool: Pool) -> WaitingProxy | None:
        left = self._left.setdefault(pool, deque())
        if not left and pool not in self._dry:
            left.extend(self._fresh(pool))
            if not left:
                # A pool that had nothing new is not asked again for this batch: each question costs a read.
                self._dry.add(pool)
        if not left:
            return None
        proxy = left.popleft()
        self._handed_out.add(proxy.poll_id)
        return proxy

    def _fresh(self, pool: Pool) -> list[WaitingProxy]:
        new = [
            proxy
            for proxy in self.pools.waiting(pool, limit=CANDIDATES + len(self._handed_out))
            if proxy.poll_id not in self._handed_out
        ]
        return in_order(new, now_ms=self.now_ms(), ties=[self.random() for _ in new])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matchmaker:
    """Matches offers with the candidates of one batch."""

    book: OfferBook
    queues: Queues
    candidates: Candidates
    now_ms: NowMs

    def match(self, offer: Offer, record: OfferRecord, *, reply_to: str) -> bool:
        """Whether the offer got a proxy, which then has it in its mailbox.

        Also True where another delivery of the same offer was faster.
        """
        wanted = pools_for(offer.nat)
        self.candidates.note(wanted[0])
        for _ in range(MAX_CLAIMS):
            proxy = self.candidates.next(wanted)
            if proxy is None:
                return False
            claim = self.book.claim(record, proxy, reply_to=reply_to, now_ms=self.now_ms())
            if claim is Claim.OFFER_TAKEN:
                return True
            if claim is Claim.WON and self._hand_over(offer, record, proxy):
                return True
        return False

    def _hand_over(self, offer: Offer, record: OfferRecord, proxy: WaitingProxy) -> bool:
        try:
            self.queues.send(proxy.mailbox, offer_letter(offer, proxy.poll_id))
        except QueueGone:
            self.book.release(record, proxy)
            return False
        return True


def offer_letter(offer: Offer, poll_id: str) -> str:
    """What the function that holds the poll finds in its mailbox."""
    return json.dumps({"for": poll_id, "offer": offer.offer, "nat": offer.nat, "relay": offer.bridge.websocket_address})
