"""Serves offers that came over HTTP: `POST /client` in both forms, and `GET /amp/client/…`.

The client's request is held open until its answer comes, at most as long as a client over SQS would wait.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.errors import OfferRefused
from sluice.rendezvous.broker import Matchmaker, OfferMetric
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.ports import NowMs, OfferRecord, OfferStore
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.messages import (
    NO_PROXIES,
    TIMED_OUT,
    Bridge,
    OfferMethod,
    answer_reply,
    error_reply,
    parse_offer,
)
from sluice.rendezvous.volunteers import LETTER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReply:
    """Either the proxy's answer, where `metric` says matched, or the protocol's error text."""

    metric: OfferMetric
    text: str

    @property
    def body(self) -> str:
        """The protocol's reply."""
        return answer_reply(self.text) if self.metric is OfferMetric.MATCHED else error_reply(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClients:
    """Serves one request at a time. `matchmaker` makes one for each offer."""

    offers: OfferStore
    matchmaker: Callable[[], Matchmaker]
    mailbox: Mailbox
    bridges: Mapping[bytes, Bridge]
    now_ms: NowMs
    recorder: EventRecorder

    def serve(self, body: str, *, client_id: str, method: OfferMethod) -> ClientReply:
        """Block until the answer comes, at most some five seconds. Raises what the requests to AWS raise."""
        try:
            offer = parse_offer(
                body, client_id=client_id, method=method, sent_at_ms=self.now_ms(), bridges=self.bridges
            )
        except OfferRefused as refused:
            return ClientReply(metric=OfferMetric.REFUSED, text=refused.reply)
        received = OfferRecord(client_id=offer.client_id, sent_at_ms=offer.sent_at_ms, method=offer.method)
        self.offers.record(received)
        record = self.recorder.described(received, offer)
        matchmaker = self.matchmaker()
        matched = matchmaker.match(offer, record, reply_to=self.mailbox.url())
        matchmaker.note_demand()
        if not matched:
            self.recorder.offer_ended(record, OfferOutcome.DENIED)
            return ClientReply(metric=OfferMetric.DENIED, text=NO_PROXIES)
        letter = self.mailbox.wait_for(offer.client_id, until_ms=offer.sent_at_ms + PATIENCE_MS)
        if letter is None:
            ended = self.offers.time_out(record)
            if ended is not None:
                self.recorder.offer_ended(ended, OfferOutcome.TIMEOUT)
                return ClientReply(metric=OfferMetric.TIMED_OUT, text=TIMED_OUT)
            # Answered in the last moment: the answer is on its way.
            letter = self.mailbox.wait_for(offer.client_id, until_ms=self.now_ms() + LETTER_MS)
        if letter is None:
            return ClientReply(metric=OfferMetric.TIMED_OUT, text=TIMED_OUT)
        return ClientReply(metric=OfferMetric.MATCHED, text=letter["answer"])
