"""Serves volunteers' proxies: holds a poll until an offer comes, and sends a proxy's answer to its client."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import DestinationFault, QueueGone
from sluice.rendezvous.counts.events import PollOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.ports import NowMs, OfferStore, ProxyPools, Queues
from sluice.rendezvous.protocol.matching import Profile, WaitingProxy, pool_of, proxies_to_hold
from sluice.rendezvous.protocol.messages import (
    OfferMethod,
    Poll,
    PollStatus,
    ProxyAnswer,
    RelayPattern,
    accepts,
    answer_reply,
    poll_reply,
)

LETTER_MS = 3_000  # from a won claim to the letter in the mailbox


class PollMetric(StrEnum):
    """How a poll ended, as it is counted. Each is a metric."""

    MATCHED = "PollsMatched"
    IDLE = "PollsIdle"  # nobody came
    DEFERRED = "PollsDeferred"  # enough proxies wait already
    REFUSED = "PollsRefused"  # its relay pattern doesn't cover ours
    LOST = "PollsLost"  # claimed, but the offer never came: its broker died in between


# What events call it. Who is claimed is told of with the offer that claimed it, also where it never came.
ENDED_AS = {
    PollMetric.IDLE: PollOutcome.IDLE,
    PollMetric.DEFERRED: PollOutcome.IDLE,
    PollMetric.REFUSED: PollOutcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volunteers:
    """Serves one request at a time. Raises what the requests to AWS raise."""

    offers: OfferStore
    pools: ProxyPools
    queues: Queues
    mailbox: Mailbox
    allowed: RelayPattern
    held_min: int
    held_max: int
    now_ms: NowMs
    new_id: Callable[[], str]
    recorder: EventRecorder

    def poll(self, poll: Poll, *, address: str) -> tuple[PollMetric, str]:
        """Hold a poll up to ten seconds. Returns the body for the proxy; `address` is where its poll came from."""
        profile, polled_at_ms = self.recorder.profile(poll, address=address), self.now_ms()
        metric, body = self._poll(poll, profile)
        if metric in ENDED_AS:
            self.recorder.poll_ended(poll, profile, ENDED_AS[metric], polled_at_ms=polled_at_ms)
        return metric, body

    def _poll(self, poll: Poll, profile: Profile) -> tuple[PollMetric, str]:
        if not accepts(poll.relay_pattern, allowed=self.allowed):
            return PollMetric.REFUSED, poll_reply(PollStatus.REFUSED)
        pool, now_ms = pool_of(poll.nat), self.now_ms()
        recent_offers = self.pools.recent_offers(pool, now_ms=now_ms)
        wanted = proxies_to_hold(recent_offers=recent_offers, at_least=self.held_min, at_most=self.held_max)
        if self.pools.count(pool, now_ms=now_ms) >= wanted:
            return PollMetric.DEFERRED, poll_reply(PollStatus.NO_MATCH)
        return self._hold(
            WaitingProxy(
                poll_id=self.new_id(),
                sid=hash_sid(poll.sid),
                pool=pool,
                clients=poll.clients,
                polled_at_ms=self.now_ms(),
                mailbox=self.mailbox.url(),
                profile=profile,
            )
        )

    def _hold(self, proxy: WaitingProxy) -> tuple[PollMetric, str]:
        self.pools.enter(proxy)
        letter = None
        try:
            letter = self.mailbox.wait_for(proxy.poll_id, until_ms=proxy.waits_until_ms)
        finally:
            unclaimed = letter is None and self.pools.leave(proxy)
        if unclaimed:
            return PollMetric.IDLE, poll_reply(PollStatus.NO_MATCH)
        if letter is None:
            # Claimed in the last moment: the offer is on its way.
            letter = self.mailbox.wait_for(proxy.poll_id, until_ms=self.now_ms() + LETTER_MS)
        if letter is None:
            return PollMetric.LOST, poll_reply(PollStatus.NO_MATCH)
        body = poll_reply(PollStatus.MATCHED, offer=letter["offer"], nat=letter["nat"], relay=letter["relay"])
        return PollMetric.MATCHED, body

    def answer(self, answer: ProxyAnswer, *, address: str) -> bool:
        """Send an answer, which came from this address, to its client; False where that is gone. Never blocks."""
        offer = self.offers.answer(hash_sid(answer.sid))
        if offer is None:
            self.recorder.answered_too_late(address=address)
            return False
        if offer.method is OfferMethod.SQS:
            body = answer_reply(answer.answer)
        else:
            # The client's request is held open by the function that owns the mailbox it goes to.
            body = json.dumps({"for": offer.client_id, "answer": answer.answer})
        try:
            self.queues.send(offer.reply_to, body)
        except QueueGone:
            self.recorder.answer_lost(offer)
            return False
        except DestinationFault:
            # The client still hears something: its tick finds the offer unanswered.
            self.offers.unanswer(offer)
            raise
        self.recorder.answered(offer)
        return True


def hash_sid(sid: str) -> str:
    """Shorten a proxy's own name for itself to 32 hex digits, whatever it sends."""
    return hashlib.sha256(sid.encode()).hexdigest()[:32]
