"""Finds proxies for offers: gives an offer to one that waits, or has it wait until one polls.

Who waits writes that down and looks then, and so does who polls: of two that come at the same time one sees the other.
"""

import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.persistence import Persistence
from sluice.rendezvous.ports import NowMs, OfferStore, OpenOffer, ProxyPools, Queues, WaitingOffers
from sluice.rendezvous.protocol.matching import Nat, Pool, WaitingProxy, in_order, pools_for

CANDIDATES = 4  # read at once of a pool, beside those for the rest of a batch
MAX_TRIES = 20  # for one offer, of proxies that others are given to
AGAIN_MS = 1_500  # for which a proxy is worth to be tried again: a mailbox that has just been made may not be found


@dataclass(slots=True, kw_only=True)
class Matchmaker:
    """Finds proxies for the offers of one batch, `offers_due` at most. Candidates are read once for all of them.

    Safe for threads; `executor` does side by side what doesn't depend on each other.
    """

    offers: OfferStore
    pools: ProxyPools
    waiting: WaitingOffers
    queues: Queues
    pacing: Pacing
    persistence: Persistence
    executor: Executor
    now_ms: NowMs
    random: Callable[[], float]
    offers_due: int = 1
    _left: dict[Pool, deque[WaitingProxy]] = field(default_factory=dict)
    _drawn: set[str] = field(default_factory=set)
    _questions: int = 0
    _asked: dict[Pool, int] = field(default_factory=dict)  # which question was a pool's last
    _lock: Lock = field(default_factory=Lock)

    def draw(self, nat: Nat, *, after: int = 0) -> WaitingProxy | None:
        """Find a proxy to try for a client, which nobody else of the batch is told; None where there is none.

        A pool isn't asked again that had nobody, but by who wants to know what came `after` so many questions.
        Raises `CallFailed`.
        """
        with self._lock:
            for pool in pools_for(nat):
                left = self._left.setdefault(pool, deque())
                if not left and self._asked.get(pool, 0) <= after:
                    self._questions += 1
                    waiting = self.pools.waiting(
                        pool,
                        now_ms=self.now_ms(),
                        limit=CANDIDATES + self.offers_due,
                        shards=self.pacing.pace().shards,
                        # Whom the first question misses, those that wait meanwhile find by the second.
                        consistent=after > 0,
                    )
                    self._asked[pool] = self._questions
                    new = [proxy for proxy in waiting if proxy.poll_id not in self._drawn]
                    left.extend(in_order(new, ties=[self.random() for _ in new]))
                if left:
                    proxy = left.popleft()
                    self._drawn.add(proxy.poll_id)
                    return proxy
        return None

    def give(self, offer: OpenOffer, proxy: WaitingProxy | None, *, after: int = 0) -> bool:
        """Give the offer to this proxy, or to the next ones where that isn't there any more; False for nobody."""
        for _ in range(MAX_TRIES):
            if proxy is None or self.now_ms() >= offer.waits_until_ms:
                break
            if self._is_given(offer, proxy):
                return True
            proxy = self.draw(offer.record.nat, after=after)
        return False

    def _is_given(self, offer: OpenOffer, proxy: WaitingProxy) -> bool:
        until_ms = min(self.now_ms() + AGAIN_MS, offer.waits_until_ms)
        try:
            matched = partial(self.offers.match, offer, proxy, now_ms=self.now_ms())
            if not self.persistence.persist(matched, until_ms=until_ms):
                return False
        except CallFailed:
            # Whoever looks again may try it again: it isn't known whether it was written.
            with self._lock:
                self._drawn.discard(proxy.poll_id)
            return False
        leaving = self.executor.submit(self.pools.leave, proxy)
        letter = offer_letter(offer, proxy.poll_id)
        try:
            until_ms = min(self.now_ms() + AGAIN_MS, offer.waits_until_ms)
            self.persistence.persist(lambda: self.queues.send(proxy.mailbox, letter), until_ms=until_ms)
        except QueueGone:
            return False
        except CallFailed:
            return True  # it may have come through, and no second proxy is to have it
        finally:
            leaving.exception()  # its place is over in seconds anyway
        return True

    def have_wait(self, offers: Sequence[OpenOffer]) -> list[bool]:
        """Have offers wait for polls. Says of each whether it was given to a proxy that came meanwhile.

        Raises `CallFailed` where nobody would find them.
        """
        given: set[OpenOffer] = set()
        left = list(offers)
        while left:
            until_ms = max(offer.waits_until_ms for offer in left)
            self.persistence.persist(partial(self.waiting.put, left), until_ms=until_ms)
            with self._lock:
                after = self._questions
            # For those left there was a proxy that somebody else was given: they wait again, and look again.
            settled = {offer: self._settled(offer, after=after) for offer in left}
            given |= {offer for offer, outcome in settled.items() if outcome}
            left = [offer for offer, outcome in settled.items() if outcome is None]
        return [offer in given for offer in offers]

    def _settled(self, offer: OpenOffer, *, after: int) -> bool | None:
        """Look for a proxy for an offer that waits: whether it has one, or None where it waits no more and has none."""
        draw = partial(self.draw, offer.record.nat, after=after)
        try:
            proxy = self.persistence.persist(draw, until_ms=min(self.now_ms() + AGAIN_MS, offer.waits_until_ms))
            if proxy is None or self.now_ms() >= offer.waits_until_ms:
                return False
            return not self.waiting.take(offer) or self.give(offer, proxy, after=after) or None
        except CallFailed:
            return False  # a poll may find it


def offer_letter(offer: OpenOffer, poll_id: str) -> str:
    """Write what the function that holds the poll finds in its mailbox."""
    return json.dumps({"for": poll_id, "offer": offer.offer, "nat": offer.record.nat, "relay": offer.relay})
