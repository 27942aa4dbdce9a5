"""The five seconds of a client: a *tick* is a delayed message that times out what was not answered by then.

One tick serves every offer that falls due around it, and re-arms itself while some still wait, so at a steady rate it
costs a request or two a second, not three an offer. It carries no list of offers: it asks the book for those that were
sent since `from_ms`, so a tick delivered twice, late, or by somebody who may post to our queue does no harm.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from sluice.errors import Malformed, QueueGone
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.ports import NowMs, OfferBook, OfferRecord, Queues
from sluice.rendezvous.protocol.decoding import read_object
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.offers import TIMED_OUT, error_reply

LATEST_MS = 1_000  # how much later than its due time an offer may be timed out
EARLIEST_MS = 1_500  # a tick that comes sooner than this may be reading the book already, before the offer is in it


@dataclass(frozen=True, slots=True)
class Tick:
    """When to look for offers sent at or after `from_ms`."""

    from_ms: int

    def body(self) -> str:
        """As it travels."""
        return json.dumps({"from": self.from_ms})

    @classmethod
    def parse(cls, body: str) -> "Tick":
        """Raises `Malformed`."""
        fields = read_object(body, {"from": int})
        if "from" not in fields:
            raise Malformed("no from")
        return cls(fields["from"])


@dataclass(slots=True)
class TickArmer:
    """Arms ticks, and remembers the last one so that the next offers share it. Safe for threads."""

    send: Callable[[Tick, int], None]  # the tick, and its delay in seconds
    now_ms: NowMs
    _fires_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def cover(self, *, sent_at_ms: int) -> None:
        """Sees to it that a tick comes when this offer, matched by now, is due."""
        due_ms = sent_at_ms + PATIENCE_MS
        with self._lock:
            now_ms = self.now_ms()
            if now_ms + EARLIEST_MS <= self._fires_at_ms <= due_ms + LATEST_MS:
                return
            delay_s = seconds_until(due_ms, now_ms=now_ms)
            # Whatever is matched from now on was sent after this: older offers are stale.
            self.send(Tick(now_ms - PATIENCE_MS), delay_s)
            self._fires_at_ms = now_ms + delay_s * 1000


def seconds_until(due_ms: int, *, now_ms: int) -> int:
    """Whole seconds, as SQS delays messages, rounded up and at least 1."""
    return max(-(-(due_ms - now_ms) // 1000), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """Does what a tick asks."""

    book: OfferBook
    queues: Queues
    send_tick: Callable[[Tick, int], None]
    now_ms: NowMs
    witness: Witness

    def handle(self, tick: Tick) -> int:
        """Times out every unanswered offer that is due; returns how many. Safe to repeat."""
        now_ms = self.now_ms()
        unanswered = self.book.matched(since_ms=tick.from_ms, until_ms=now_ms)
        due = [offer for offer in unanswered if offer.sent_at_ms + PATIENCE_MS <= now_ms]
        waiting = unanswered[len(due) :]
        if waiting:
            first = waiting[0].sent_at_ms
            self.send_tick(Tick(first), seconds_until(first + PATIENCE_MS, now_ms=now_ms))
        return sum(self._time_out(offer) for offer in due)

    def _time_out(self, offer: OfferRecord) -> bool:
        ended = self.book.time_out(offer)
        if ended is None:
            return False
        self.witness.offer_ended(ended, OfferOutcome.TIMEOUT)
        with suppress(QueueGone):  # swept already: nobody is left to tell
            self.queues.send(offer.reply_to, error_reply(TIMED_OUT))
        return True
