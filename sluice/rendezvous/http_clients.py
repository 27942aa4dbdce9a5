"""Serves offers that came over HTTP: `POST /client` in both forms, and `GET /amp/client/…`.

The client's request is held open until its answer comes, at most as long as a client over SQS would wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import Refused
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.matchmaker import Matchmaker
from sluice.rendezvous.ports import NowMs, OfferBook, OfferRecord
from sluice.rendezvous.protocol.bridges import Bridge
from sluice.rendezvous.protocol.matching import PATIENCE_MS
from sluice.rendezvous.protocol.offers import NO_PROXIES, TIMED_OUT, Method, Offer, parse_offer
from sluice.rendezvous.volunteers import LETTER_MS


class ClientOutcome(StrEnum):
    """What became of an offer over HTTP. Each is a metric, the same as over SQS."""

    MATCHED = "OffersMatched"
    DENIED = "OffersDenied"
    REFUSED = "OffersRefused"
    TIMED_OUT = "OffersTimedOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReply:
    """Either the proxy's answer, or the protocol's error text."""

    outcome: ClientOutcome
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClients:
    """Serves one request at a time."""

    book: OfferBook
    matchmaker: Matchmaker
    mailbox: Mailbox
    bridges: Mapping[bytes, Bridge]
    now_ms: NowMs
    witness: Witness

    def serve(self, body: str, *, client_id: str, method: Method) -> ClientReply:
        """Blocks until the answer comes, at most some five seconds."""
        try:
            offer = parse_offer(
                body, client_id=client_id, method=method, sent_at_ms=self.now_ms(), bridges=self.bridges
            )
        except Refused as refused:
            return ClientReply(outcome=ClientOutcome.REFUSED, text=refused.reply)
        return self._match(offer)

    def _match(self, offer: Offer) -> ClientReply:
        received = OfferRecord(client_id=offer.client_id, sent_at_ms=offer.sent_at_ms, method=offer.method)
        self.book.record(received)
        record = self.witness.described(received, offer)
        matched = self.matchmaker.match(offer, record, reply_to=self.mailbox.url())
        self.matchmaker.candidates.note_demand()
        if not matched:
            self.witness.offer_ended(record, OfferOutcome.DENIED)
            return ClientReply(outcome=ClientOutcome.DENIED, text=NO_PROXIES)
        letter = self.mailbox.wait_for(offer.client_id, until_ms=offer.sent_at_ms + PATIENCE_MS)
        if letter is None and not self._time_out(record):
            # Answered in the last moment: the answer is on its way.
            letter = self.mailbox.wait_for(offer.client_id, until_ms=self.now_ms() + LETTER_MS)
        if letter is None:
            return ClientReply(outcome=ClientOutcome.TIMED_OUT, text=TIMED_OUT)
        return ClientReply(outcome=ClientOutcome.MATCHED, text=letter["answer"])

    def _time_out(self, record: OfferRecord) -> bool:
        ended = self.book.time_out(record)
        if ended is None:
            return False
        self.witness.offer_ended(ended, OfferOutcome.TIMEOUT)
        return True
