"""Serves offers over SQS: the answer queue comes first, then a proxy, or a place among the offers that wait.

As soon as a client's queue is there, the reply is sent into it that says that nobody answered: delayed until the
client's patience ends (a *dead man's reply*). A client reads once. So an answer that comes first is what it hears, and
whatever fails or dies after that, it hears something.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, OfferRefused
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.matchmaker import Matchmaker
from sluice.rendezvous.persistence import Persistence
from sluice.rendezvous.ports import NewId, NowMs, OfferRecord, OfferState, OfferStore, OpenOffer, Queues
from sluice.rendezvous.protocol.matching import (
    ANSWER_QUEUE_AGE_MS,
    PATIENCE_MS,
    WaitingProxy,
    answers_until,
    is_stale,
    pools_for,
    reply_delay_s,
    shard_of,
)
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    NO_PROXIES,
    TIMED_OUT,
    Bridge,
    Offer,
    OfferMethod,
    error_reply,
    is_client_id,
    parse_offer,
)

# A client reads once and never deletes; its queue is swept after two minutes.
ANSWER_QUEUE_ATTRIBUTES = {"MessageRetentionPeriod": "300"}

SWEPT_SOON_MS = 10_000
PROMISED_MS = 8_000  # after its offer; a client reads its queue for longer than its patience lasts


class OfferMetric(StrEnum):
    """What became of an offer, over SQS or HTTP, as it is counted. Each is a metric."""

    MATCHED = "OffersMatched"
    WAITING = "OffersWaiting"  # for a proxy that polls
    DENIED = "OffersDenied"
    REFUSED = "OffersRefused"  # malformed, or for a bridge we don't know: the client has the reason
    STALE = "OffersStale"  # its client gave up before we saw it
    REPEATED = "OffersRepeated"  # delivered again
    ANONYMOUS = "OffersAnonymous"  # without a ClientID there is nobody to reply to
    TIMED_OUT = "OffersTimedOut"


class OfferMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the offers queue, as it came. `trace` is the X-Ray trace header that its client gave it."""

    client_id: str
    body: str
    sent_at_ms: int
    trace: str | None = None
    receives: int = 1


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Serves offers over SQS; safe for threads. `executor` does side by side what doesn't depend on each other."""

    offers: OfferStore
    queues: Queues
    bridges: Mapping[bytes, Bridge]
    recorder: EventRecorder
    persistence: Persistence
    executor: Executor
    now_ms: NowMs
    new_id: NewId
    answer_prefix: str = ANSWER_QUEUE_PREFIX

    def serve(
        self, messages: Sequence[OfferMessage], matchmaker: Matchmaker, *, executor: Executor
    ) -> list[OfferMetric | Exception]:
        """Reply or match, at most once for each message however often it is delivered; `executor` is for messages.

        What is raised for a message stands in its place: `CallFailed` or `QueueGone` where its client may hear nothing.
        """

        def tried(message: OfferMessage) -> _Served | Exception:
            try:
                return self._serve(message, matchmaker)
            except Exception as error:  # noqa: BLE001 - the message is reported as failed, whatever it was
                return error

        served = list(executor.map(tried, messages))
        waiting = [each for each in served if isinstance(each, _Served) and each.waiting is not None]
        try:
            given = matchmaker.have_wait([each.waiting for each in waiting if each.waiting is not None])
        except CallFailed as error:
            for each in waiting:
                each.outcome = error
        else:
            for each, is_given in zip(waiting, given, strict=True):
                each.outcome = OfferMetric.MATCHED if is_given else OfferMetric.WAITING
        return [each if isinstance(each, Exception) else each.ended() for each in served]

    def _serve(self, message: OfferMessage, matchmaker: Matchmaker) -> "_Served":
        if not is_client_id(message.client_id):
            return _Served(OfferMetric.ANONYMOUS)
        read = self._read(message)
        if is_stale(sent_at_ms=message.sent_at_ms, now_ms=self.now_ms()):
            if message.receives > 1:
                # Whoever had it before may have died between its queue and its record, and then nobody sweeps that.
                self.offers.record(self._record_again(message, read))
            return _Served(OfferMetric.STALE)
        record = self._record(message, read)
        is_first, reply_to = self._receive(record)
        if not is_first:
            return _Served(OfferMetric.REPEATED)
        if isinstance(read, OfferRefused):
            body, until_ms = error_reply(read.reply), message.sent_at_ms + PROMISED_MS
            self.persistence.persist(lambda: self.queues.send(reply_to, body), until_ms=until_ms)
            return _Served(OfferMetric.REFUSED)
        matchmaker.pacing.note_offer(pools_for(read.nat)[0])
        opened = OpenOffer(
            record=record,
            offer=read.offer,
            relay=read.bridge.websocket_address,
            reply_to=reply_to,
            answers_until_ms=answers_until(sent_at_ms=record.sent_at_ms, now_ms=self.now_ms()),
            shard=shard_of(record.client_id, matchmaker.pacing.pace().shards),
        )
        return self._match(opened, matchmaker)

    def _read(self, message: OfferMessage) -> Offer | OfferRefused:
        try:
            return parse_offer(
                message.body,
                client_id=message.client_id,
                method=OfferMethod.SQS,
                sent_at_ms=message.sent_at_ms,
                bridges=self.bridges,
            )
        except OfferRefused as refused:
            return refused

    def _record(self, message: OfferMessage, read: Offer | OfferRefused) -> OfferRecord:
        record = OfferRecord(
            client_id=message.client_id,
            sent_at_ms=message.sent_at_ms,
            method=OfferMethod.SQS,
            token=self.new_id(),
        )
        if isinstance(read, OfferRefused):
            return replace(record, state=OfferState.REFUSED)
        return self.recorder.described(record, read, trace=message.trace)

    def _record_again(self, message: OfferMessage, read: Offer | OfferRefused) -> OfferRecord:
        """Write for its queue alone what may have been swept, and have had its end, already."""
        record = self._record(message, read)
        may_be_swept = self.now_ms() - message.sent_at_ms > ANSWER_QUEUE_AGE_MS - SWEPT_SOON_MS
        return replace(record, state=OfferState.REFUSED) if may_be_swept else record

    def _receive(self, record: OfferRecord) -> tuple[bool, str]:
        """Write an offer down and make its queue, side by side. Says whether we are the first to, and the queue's URL.

        The record is what has the queue swept: where only that fails, the message comes again, and is written then.
        """
        until_ms = record.sent_at_ms + PATIENCE_MS
        name = self.answer_prefix + record.client_id
        recording = self.executor.submit(
            self.persistence.persist, lambda: self.offers.record(record), until_ms=until_ms
        )
        try:
            reply_to = self.persistence.persist(
                lambda: self.queues.create(name, ANSWER_QUEUE_ATTRIBUTES), until_ms=until_ms
            )
        finally:
            is_first = recording.result()
        return is_first, reply_to

    def _match(self, offer: OpenOffer, matchmaker: Matchmaker) -> "_Served":
        proxy = self._drawn(offer, matchmaker)
        promises = [self._promise(offer, TIMED_OUT if proxy else NO_PROXIES)]
        if matchmaker.give(offer, proxy):
            return _Served(OfferMetric.MATCHED, promises=promises)
        if proxy is not None:
            # Others were faster. That there is no proxy is to be heard then, so it has to come first.
            offer = replace(offer, answers_until_ms=offer.answers_until_ms - 1000)
            promises.append(self._promise(offer, NO_PROXIES, sooner_s=1))
        return _Served(OfferMetric.WAITING, promises=promises, waiting=offer)

    def _drawn(self, offer: OpenOffer, matchmaker: Matchmaker) -> WaitingProxy | None:
        if self.now_ms() >= offer.waits_until_ms:
            return None
        try:
            return matchmaker.draw(offer.record.nat)
        except CallFailed:
            return None  # a poll may still find it

    def _promise(self, offer: OpenOffer, text: str, *, sooner_s: int = 0) -> "Future[None]":
        """Send what the client hears if nobody answers."""
        sent_at_ms, body = offer.record.sent_at_ms, error_reply(text)

        def send() -> None:
            delay_s = reply_delay_s(
                sent_at_ms=sent_at_ms - 1000 * sooner_s,
                answers_until_ms=offer.answers_until_ms,
                now_ms=self.now_ms(),
            )
            self.queues.send(offer.reply_to, body, delay_s=delay_s)

        return self.executor.submit(self.persistence.persist, send, until_ms=sent_at_ms + PROMISED_MS)


@dataclass(slots=True, eq=False)
class _Served:
    """An offer in work: how it ends, if all that was begun for it succeeds. One that is `waiting` is still to wait."""

    outcome: OfferMetric | Exception
    promises: "Sequence[Future[None]]" = ()
    waiting: OpenOffer | None = None

    def ended(self) -> OfferMetric | Exception:
        """Wait until all of it is done."""
        faults = [promise.exception() for promise in self.promises]
        fault = next((each for each in faults if isinstance(each, Exception)), None)
        return fault or self.outcome
