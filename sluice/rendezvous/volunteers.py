"""Serves volunteers' proxies: holds a poll until an offer comes, and sends a proxy's answer to its client."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import DestinationFault, QueueGone
from sluice.rendezvous.counts import events
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.ports import NowMs, OfferBook, OfferRecord, ProxyPools, Queues
from sluice.rendezvous.protocol.bridges import RelayPattern
from sluice.rendezvous.protocol.matching import Pool, Profile, WaitingProxy, pool_of, proxies_to_hold
from sluice.rendezvous.protocol.offers import Method, answer_reply
from sluice.rendezvous.protocol.polls import Answer, Poll, PollStatus, accepts, poll_reply, refused_reply

LETTER_MS = 3_000  # from a won claim to the letter in the mailbox


class PollOutcome(StrEnum):
    """How a poll ended. Each is a metric."""

    MATCHED = "PollsMatched"
    IDLE = "PollsIdle"  # nobody came
    DEFERRED = "PollsDeferred"  # enough proxies wait already
    REFUSED = "PollsRefused"  # its relay pattern doesn't cover ours
    LOST = "PollsLost"  # claimed, but the offer never came: its broker died in between


# What events call it. Who is claimed is told of with the offer that claimed it, also where it never came.
ENDED_AS = {
    PollOutcome.IDLE: events.PollOutcome.IDLE,
    PollOutcome.DEFERRED: events.PollOutcome.IDLE,
    PollOutcome.REFUSED: events.PollOutcome.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volunteers:
    """Serves one request at a time."""

    book: OfferBook
    pools: ProxyPools
    queues: Queues
    mailbox: Mailbox
    allowed: RelayPattern
    held_min: int
    held_max: int
    now_ms: NowMs
    new_id: Callable[[], str]
    witness: Witness

    def poll(self, poll: Poll, *, address: str) -> tuple[PollOutcome, str]:
        """Blocks up to ten seconds. Returns the body for the proxy; `address` is where its poll came from."""
        profile, polled_at_ms = self.witness.profile(poll, address=address), self.now_ms()
        outcome, body = self._poll(poll, profile)
        if outcome in ENDED_AS:
            self.witness.poll_ended(poll, profile, ENDED_AS[outcome], polled_at_ms=polled_at_ms)
        return outcome, body

    def _poll(self, poll: Poll, profile: Profile) -> tuple[PollOutcome, str]:
        if not accepts(poll.relay_pattern, allowed=self.allowed):
            return PollOutcome.REFUSED, refused_reply()
        pool = pool_of(poll.nat)
        if self._enough_wait_in(pool):
            return PollOutcome.DEFERRED, poll_reply(PollStatus.NO_MATCH)
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

    def _enough_wait_in(self, pool: Pool) -> bool:
        now_ms = self.now_ms()
        wanted = proxies_to_hold(
            recent_offers=self.pools.recent_offers(pool, now_ms=now_ms), at_least=self.held_min, at_most=self.held_max
        )
        return self.pools.count(pool, now_ms=now_ms) >= wanted

    def _hold(self, proxy: WaitingProxy) -> tuple[PollOutcome, str]:
        self.pools.enter(proxy)
        letter = None
        try:
            letter = self.mailbox.wait_for(proxy.poll_id, until_ms=proxy.waits_until_ms)
        finally:
            unclaimed = letter is None and self.pools.leave(proxy)
        if unclaimed:
            return PollOutcome.IDLE, poll_reply(PollStatus.NO_MATCH)
        if letter is None:
            # Claimed in the last moment: the offer is on its way.
            letter = self.mailbox.wait_for(proxy.poll_id, until_ms=self.now_ms() + LETTER_MS)
        if letter is None:
            return PollOutcome.LOST, poll_reply(PollStatus.NO_MATCH)
        body = poll_reply(PollStatus.MATCHED, offer=letter["offer"], nat=letter["nat"], relay=letter["relay"])
        return PollOutcome.MATCHED, body

    def answer(self, answer: Answer, *, address: str) -> bool:
        """Whether the answer, which came from this address, went to its client; False where that is gone.

        Never blocks.
        """
        offer = self.book.answer(hash_sid(answer.sid))
        if offer is None:
            self.witness.answered_too_late(address=address)
            return False
        try:
            self._deliver(offer, answer.answer)
        except QueueGone:
            self.witness.answer_lost(offer)
            return False
        except DestinationFault:
            # The client still hears something: its tick finds the offer unanswered.
            self.book.unanswer(offer)
            raise
        self.witness.answered(offer)
        return True

    def _deliver(self, offer: OfferRecord, answer: str) -> None:
        body = answer_reply(answer) if offer.method is Method.SQS else reply_letter(offer.client_id, answer)
        self.queues.send(offer.reply_to, body)


def reply_letter(client_id: str, answer: str) -> str:
    """An answer for a client whose request is held open by the function that owns the mailbox it goes to."""
    return json.dumps({"for": client_id, "answer": answer})


def hash_sid(sid: str) -> str:
    """A proxy's own name for itself, in a form that is short whatever it sends."""
    return hashlib.sha256(sid.encode()).hexdigest()[:32]
