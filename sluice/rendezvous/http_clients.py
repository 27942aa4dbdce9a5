"""Serves offers that came over HTTP: `POST /client` in both forms, and `GET /amp/client/…`.

The client's request is held open until its answer comes, at most as long as a client over SQS would wait.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from sluice.errors import CallFailed, OfferRefused
from sluice.rendezvous.broker import OfferMetric
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.matchmaker import Matchmaker
from sluice.rendezvous.ports import NewId, NowMs, OfferRecord, OfferState, OfferStore, OpenOffer, WaitingOffers
from sluice.rendezvous.protocol.matching import PATIENCE_MS, pools_for, shard_of
from sluice.rendezvous.protocol.messages import (
    NO_PROXIES,
    TIMED_OUT,
    Bridge,
    OfferMethod,
    answer_reply,
    error_reply,
    parse_offer,
)

ON_ITS_WAY_MS = 1_000  # the answer that was taken in the last moment


class ClientReply(msgspec.Struct, frozen=True, kw_only=True):
    """Either the proxy's answer, where `metric` says matched, or the protocol's error text."""

    metric: OfferMetric
    text: str

    @property
    def body(self) -> str:
        """The protocol's reply."""
        return answer_reply(self.text) if self.metric is OfferMetric.MATCHED else error_reply(self.text)


class HttpClients(msgspec.Struct, frozen=True, kw_only=True):
    """Serves one request at a time. `matchmaker` makes one for each offer."""

    offers: OfferStore
    waiting: WaitingOffers
    matchmaker: Callable[[], Matchmaker]
    mailbox: Mailbox
    bridges: Mapping[bytes, Bridge]
    now_ms: NowMs
    new_id: NewId
    recorder: EventRecorder

    def serve(self, body: str, *, client_id: str, method: OfferMethod) -> ClientReply:
        """Block until the answer comes, at most some five seconds. Raises what the requests to AWS raise."""
        try:
            offer = parse_offer(
                body, client_id=client_id, method=method, sent_at_ms=self.now_ms(), bridges=self.bridges
            )
        except OfferRefused as refused:
            return ClientReply(metric=OfferMetric.REFUSED, text=refused.reply)
        received = OfferRecord(
            client_id=offer.client_id, sent_at_ms=offer.sent_at_ms, method=offer.method, token=self.new_id()
        )
        record = self.recorder.described(received, offer)
        self.offers.record(record)
        matchmaker = self.matchmaker()
        opened = OpenOffer(
            record=record,
            offer=offer.offer,
            relay=offer.bridge.websocket_address,
            reply_to=self.mailbox.url(),
            answers_until_ms=offer.sent_at_ms + PATIENCE_MS,
            shard=shard_of(offer.client_id, matchmaker.pacing.pace().shards),
        )
        matchmaker.pacing.note_offer(pools_for(offer.nat)[0])
        answer = self._answer_to(opened, matchmaker)
        matchmaker.pacing.flush()
        if not isinstance(answer, OfferState):
            return ClientReply(metric=OfferMetric.MATCHED, text=answer)
        with suppress(CallFailed):  # the sweeper does it then
            self.offers.end(record, answer, now_ms=self.now_ms())
        if answer is OfferState.DENIED:
            return ClientReply(metric=OfferMetric.DENIED, text=NO_PROXIES)
        return ClientReply(metric=OfferMetric.TIMED_OUT, text=TIMED_OUT)

    def _answer_to(self, offer: OpenOffer, matchmaker: Matchmaker) -> str | OfferState:
        """Wait for the answer; or say how the offer ended without one."""
        client_id = offer.record.client_id
        letter = None
        if not matchmaker.give(offer, matchmaker.draw(offer.record.nat)) and matchmaker.have_wait([offer]) == [False]:
            letter = self.mailbox.wait_for(client_id, until_ms=offer.waits_until_ms)
            if letter is None and self.waiting.take(offer):
                return OfferState.DENIED
        letter = letter or self.mailbox.wait_for(client_id, until_ms=offer.answers_until_ms + ON_ITS_WAY_MS)
        return OfferState.TIMED_OUT if letter is None else letter["answer"]
