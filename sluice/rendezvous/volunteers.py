"""Serves volunteers' proxies: gives a poll an offer that waits, or holds it until one comes; passes answers on."""

import hashlib
import json
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from sluice.errors import QueueGone
from sluice.rendezvous.counts.events import PollOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.persistence import Persistence
from sluice.rendezvous.ports import NewId, NowMs, OfferStore, OpenOffer, ProxyPools, Queues, WaitingOffers
from sluice.rendezvous.protocol.matching import HOLD_MS, Profile, WaitingProxy, pool_of, shard_of
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
from sluice.rendezvous.protocol.pace import Turn, may_take

LETTER_MS = 3_000  # from a match to the letter in the mailbox
TRIED = 5  # offers of those that wait, the oldest: other polls may be faster


class PollMetric(StrEnum):
    """How a poll ended, as it is counted. Each is a metric."""

    MATCHED = "PollsMatched"
    IDLE = "PollsIdle"  # held, and nobody came
    DEFERRED = "PollsDeferred"  # not held, and nobody waited
    REFUSED = "PollsRefused"  # its relay pattern doesn't cover ours
    LOST = "PollsLost"  # matched, but the offer never came: its broker died in between


# What events call it.
ENDED_AS = {
    PollMetric.MATCHED: PollOutcome.MATCHED,
    PollMetric.LOST: PollOutcome.IDLE,
    PollMetric.IDLE: PollOutcome.IDLE,
    PollMetric.DEFERRED: PollOutcome.IDLE,
    PollMetric.REFUSED: PollOutcome.REJECTED,
}


class Volunteers(msgspec.Struct, frozen=True, kw_only=True):
    """Serves one request at a time. Raises what the requests to AWS raise.

    `held_min` polls are held at rest, on the average of a day, and `held_max` at most; `random` draws in [0, 1).
    """

    offers: OfferStore
    pools: ProxyPools
    waiting: WaitingOffers
    queues: Queues
    mailbox: Mailbox
    pacing: Pacing
    persistence: Persistence
    allowed: RelayPattern
    held_min: int
    held_max: int
    now_ms: NowMs
    new_id: NewId
    random: Callable[[], float]
    recorder: EventRecorder

    def poll(self, poll: Poll, *, address: str) -> tuple[PollMetric, str]:
        """Serve a poll, in ten seconds. Returns the body for the proxy; `address` is where its poll came from."""
        profile, polled_at_ms = self.recorder.profile(poll, address=address), self.now_ms()
        metric, body = self._poll(poll, profile)
        self.recorder.poll_ended(poll, profile, ENDED_AS[metric], polled_at_ms=polled_at_ms)
        self.pacing.flush()
        return metric, body

    def _poll(self, poll: Poll, profile: Profile) -> tuple[PollMetric, str]:
        if not accepts(poll.relay_pattern, allowed=self.allowed):
            return PollMetric.REFUSED, poll_reply(PollStatus.REFUSED)
        pool, now_ms, pace = pool_of(poll.nat), self.now_ms(), self.pacing.pace()
        away_ms = pace.next_poll_ms(pool)
        is_held = self.random() < pace.hold_chance(pool, at_rest=self.held_min, at_most=self.held_max)
        turn = Turn.begun(now_ms=now_ms, next_poll_ms=away_ms, held=is_held)
        rested = self.pacing.let_in(profile.address, turn)
        if is_held and rested >= 1:
            rested = self.pacing.confirm(profile.address, turn)
        sid = hash_sid(poll.sid)
        proxy = WaitingProxy(
            poll_id=self.new_id(),
            sid=sid,
            pool=pool,
            clients=poll.clients,
            polled_at_ms=now_ms,
            profile=profile,
            shard=shard_of(sid, pace.shards),
        )
        if is_held and rested >= 1:
            metric, body = self._hold(replace(proxy, mailbox=self.mailbox.url()))
            self.pacing.note_held(self.now_ms() - now_ms)
            held_ms = HOLD_MS
        else:
            body = self._take(proxy, turn, rested=rested)
            metric, held_ms = PollMetric.DEFERRED if body is None else PollMetric.MATCHED, 0
        if body is None and rested >= 1:
            self.pacing.note_poll(pool, address=profile.address, away_ms=away_ms + held_ms)
        return metric, body or poll_reply(PollStatus.NO_MATCH, next_poll_ms=away_ms)

    def _hold(self, proxy: WaitingProxy) -> tuple[PollMetric, str | None]:
        """Have a proxy wait in its pool; the body for it where it got an offer."""
        self.pools.enter(proxy)
        is_given = False  # by a broker, which takes it out of its pool
        try:
            # Whoever came before it entered has looked for it in vain, and waits: it looks for those.
            body = self._give(proxy, self._waiting(proxy, consistent=True))
            if body is None:
                body = self._receive(proxy, until_ms=proxy.waits_until_ms)
                is_given = body is not None or not self.offers.close(proxy)
        finally:
            if not is_given:
                self.pools.leave(proxy)
        if body is None and is_given:
            # Matched in the last moment: the offer is on its way.
            body = self._receive(proxy, until_ms=self.now_ms() + LETTER_MS)
        if body is None:
            return PollMetric.LOST if is_given else PollMetric.IDLE, None
        return PollMetric.MATCHED, body

    def _receive(self, proxy: WaitingProxy, *, until_ms: int) -> str | None:
        """Wait for the letter with an offer for this poll."""
        try:
            letter = self.mailbox.wait_for(proxy.poll_id, until_ms=until_ms)
        except QueueGone:
            return None
        if letter is None:
            return None
        return poll_reply(PollStatus.MATCHED, offer=letter["offer"], nat=letter["nat"], relay=letter["relay"])

    def _take(self, proxy: WaitingProxy, turn: Turn, *, rested: float) -> str | None:
        """Take the oldest offer that waits for such a proxy; the body for it, or None where none does."""
        waiting = self._waiting(proxy)
        if waiting and rested >= 1:
            rested = self.pacing.confirm(proxy.profile.address, turn)
        return self._give(proxy, waiting, rested=rested)

    def _waiting(self, proxy: WaitingProxy, *, consistent: bool = False) -> Sequence[OpenOffer]:
        """Look for offers that wait for such a proxy, the oldest first."""
        return self.waiting.oldest(
            proxy.pool, now_ms=self.now_ms(), limit=TRIED, shards=self.pacing.pace().shards, consistent=consistent
        )

    def _give(self, proxy: WaitingProxy, waiting: Sequence[OpenOffer], *, rested: float = 1.0) -> str | None:
        """Give a proxy the first of these that it may take, and that nobody else has taken; the body for it."""
        now_ms = self.now_ms()
        for offer in waiting:
            sent_at_ms, waits_until_ms = offer.record.sent_at_ms, offer.waits_until_ms
            if not may_take(rested, sent_at_ms=sent_at_ms, waits_until_ms=waits_until_ms, now_ms=now_ms):
                break  # the others are younger
            if not self.waiting.take(offer):
                continue
            if not self.offers.match(offer, proxy, now_ms=now_ms):
                # Somebody gave it another offer, which is on its way, or its Sid has one to answer.
                self.waiting.put([offer])
                return None
            return poll_reply(PollStatus.MATCHED, offer=offer.offer, nat=offer.record.nat, relay=offer.relay)
        return None

    def answer(self, answer: ProxyAnswer, *, address: str) -> bool:
        """Send an answer, which came from this address, to its client; False where that is gone. Never blocks long."""
        match = self.offers.answer(hash_sid(answer.sid), token=self.new_id(), now_ms=self.now_ms())
        if match is None:
            self.recorder.answered_too_late(address=address)
            return False
        record = match.record
        if record.method is OfferMethod.SQS:
            body = answer_reply(answer.answer)
        else:
            # The client's request is held open by the function that owns the mailbox it goes to.
            body = json.dumps({"for": record.client_id, "answer": answer.answer})
        try:
            self.persistence.persist(lambda: self.queues.send(match.reply_to, body), until_ms=match.answers_until_ms)
        except QueueGone:
            return False
        return True


def hash_sid(sid: str) -> str:
    """Shorten a proxy's own name for itself to 32 hex digits, whatever it sends."""
    return hashlib.sha256(sid.encode()).hexdigest()[:32]
