"""The five seconds of a client: a *tick* is a delayed message that times out what was not answered by then.

One tick serves every offer that falls due around it, and re-arms itself while some still wait, so at a steady rate it
costs a request or two a second, not three an offer. It carries no list of offers: the store is asked for those sent
since `from_ms`, so a tick delivered twice, late, or by somebody who may post to our queue does no harm.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sluice.errors import QueueGone
from sluice.rendezvous.broker import TimeoutTick, seconds_until
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.ports import NowMs, OfferStore, Queues
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.messages import TIMED_OUT, error_reply


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """Does what a tick asks."""

    offers: OfferStore
    queues: Queues
    send_tick: Callable[[TimeoutTick, int], None]
    now_ms: NowMs
    recorder: EventRecorder

    def handle(self, tick: TimeoutTick) -> int:
        """Time out every unanswered offer that is due; returns how many. Safe to repeat. Raises `CallFailed`."""
        now_ms = self.now_ms()
        unanswered = self.offers.matched(since_ms=tick.from_ms, until_ms=now_ms)
        due = [offer for offer in unanswered if offer.sent_at_ms + PATIENCE_MS <= now_ms]
        waiting = unanswered[len(due) :]
        if waiting:
            first = waiting[0].sent_at_ms
            self.send_tick(TimeoutTick(first), seconds_until(first + PATIENCE_MS, now_ms=now_ms))
        timed_out = 0
        for offer in due:
            ended = self.offers.time_out(offer)
            if ended is None:
                continue
            timed_out += 1
            self.recorder.offer_ended(ended, OfferOutcome.TIMEOUT)
            with suppress(QueueGone):  # swept already: nobody is left to tell
                self.queues.send(offer.reply_to, error_reply(TIMED_OUT))
        return timed_out
