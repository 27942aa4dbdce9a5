"""Serves offers that came over SQS: the answer queue first, then a proxy, or the reason why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import Refused
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.matchmaker import Matchmaker, offer_letter
from sluice.rendezvous.ports import NowMs, OfferBook, OfferRecord, Queues, State
from sluice.rendezvous.protocol.bridges import Bridge
from sluice.rendezvous.protocol.matching import is_stale
from sluice.rendezvous.protocol.offers import NO_PROXIES, Method, Offer, error_reply, is_client_id, parse_offer
from sluice.rendezvous.timeouts import TickArmer

ANSWER_QUEUE_PREFIX = "snowflake-client-"
# A client reads once and never deletes; its queue is swept after two minutes.
ANSWER_QUEUE_ATTRIBUTES = {"MessageRetentionPeriod": "300"}


class Outcome(StrEnum):
    """What became of a message in the offers queue. Each is a metric."""

    MATCHED = "OffersMatched"
    DENIED = "OffersDenied"
    REFUSED = "OffersRefused"  # malformed, or for a bridge we don't know: the client has the reason
    STALE = "OffersStale"  # its client gave up before we saw it
    REPEATED = "OffersRepeated"  # delivered again after it was served
    ANONYMOUS = "OffersAnonymous"  # without a ClientID there is nobody to reply to


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A message in the offers queue, as it came. `trace` is the X-Ray trace header that its client gave it."""

    client_id: str
    body: str
    sent_at_ms: int
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Serves the offers of one batch; safe for threads."""

    book: OfferBook
    queues: Queues
    matchmaker: Matchmaker
    armer: TickArmer
    bridges: Mapping[bytes, Bridge]
    now_ms: NowMs
    witness: Witness

    def serve(self, post: Post) -> Outcome:
        """Replies or matches, at most once for each message however often it is delivered."""
        if not is_client_id(post.client_id):
            return Outcome.ANONYMOUS
        if is_stale(sent_at_ms=post.sent_at_ms, now_ms=self.now_ms()):
            return Outcome.STALE
        record = OfferRecord(client_id=post.client_id, sent_at_ms=post.sent_at_ms, method=Method.SQS)
        # Written before the queue is made, so that the sweeper knows of every queue there is.
        earlier = self.book.record(record)
        if earlier is not None and earlier.state in {State.ANSWERED, State.TIMED_OUT}:
            return Outcome.REPEATED
        reply_to = self.queues.create(ANSWER_QUEUE_PREFIX + post.client_id, ANSWER_QUEUE_ATTRIBUTES)
        try:
            offer = self._parse(post)
        except Refused as refused:
            self.queues.send(reply_to, error_reply(refused.reply))
            return Outcome.REFUSED
        if earlier is not None and earlier.state is State.MATCHED:
            return self._repeat(offer, earlier)
        return self._match(offer, self.witness.described(record, offer, trace=post.trace), reply_to)

    def _parse(self, post: Post) -> Offer:
        return parse_offer(
            post.body,
            client_id=post.client_id,
            method=Method.SQS,
            sent_at_ms=post.sent_at_ms,
            bridges=self.bridges,
        )

    def _match(self, offer: Offer, record: OfferRecord, reply_to: str) -> Outcome:
        if not self.matchmaker.match(offer, record, reply_to=reply_to):
            self.queues.send(reply_to, error_reply(NO_PROXIES))
            self.witness.offer_ended(record, OfferOutcome.DENIED)
            return Outcome.DENIED
        self.armer.cover(sent_at_ms=offer.sent_at_ms)
        return Outcome.MATCHED

    def _repeat(self, offer: Offer, earlier: OfferRecord) -> Outcome:
        """The first delivery may have ended between the claim and what follows it, so that is done again.

        The mailbox's owner ignores a letter for a poll that it has answered.
        """
        self.queues.send(earlier.mailbox, offer_letter(offer, earlier.poll_id))
        self.armer.cover(sent_at_ms=offer.sent_at_ms)
        return Outcome.REPEATED
