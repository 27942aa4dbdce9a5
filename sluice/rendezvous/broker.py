"""The broker: finds proxies for offers, and serves offers that arrive over SQS.

For each offer, the broker first creates the client's answer queue and sends the time-out reply into it, delayed until
the client's timeout ends. Then it finds a proxy, or queues the offer for the next polls. A client reads its queue only
once: it gets the answer if there is one in time, and otherwise the time-out reply, even if the broker dies.

An offer and a poll each record themselves as waiting before they look for a partner, so of two that arrive together at
least one finds the other.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from sluice.errors import CallFailed, DestinationFault, OfferRefused, QueueGone
from sluice.message import Message, Value
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    ANSWER_QUEUE_AGE_MS,
    PATIENCE_MS,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    WaitingProxy,
    answers_until,
    choose_shard,
    is_stale,
    pools_for,
    rank_proxies,
    reply_delay_s,
)
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    Bridge,
    Offer,
    error_reply,
    is_client_id,
    parse_offer,
)
from sluice.times import NowMs

if TYPE_CHECKING:  # only for type hints: a shell gets its adapters as arguments
    from sluice.aws.queues import SqsQueues
    from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
    from sluice.aws.rendezvous.waiting import DynamoWaitingOffers

T = TypeVar("T")

CLIENT_ID = "ClientID"  # the SQS message attribute with the client's id
NO_TEXT = Value("String", "")

# A client reads its queue once and deletes nothing. The queue itself is deleted by the sweep after two minutes.
ANSWER_QUEUE_ATTRIBUTES = {"MessageRetentionPeriod": "300"}
RETRIED_AFTER_MS = 250
CANDIDATES = 4  # proxies read per query of a pool, in addition to one for each offer of the batch
MAX_TRIES = 20  # proxies tried per offer; other brokers may match them first
TRY_TIMEOUT_MS = 1_500  # how long a call for one proxy is retried: SQS may not find a new mailbox at once
SWEPT_SOON_MS = 10_000
REPLY_DEADLINE_MS = 8_000  # after an offer was sent; its client reads its queue until later than this


class RendezvousDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a rendezvous function, shared by the invocations of one environment; thread-safe.

    `executor` runs independent calls concurrently, `sleep` takes seconds, `random` draws in [0, 1).
    """

    offers: "DynamoOfferStore"
    pools: "DynamoProxyPools"
    waiting: "DynamoWaitingOffers"
    queues: "SqsQueues"
    pacing: Pacing
    recorder: EventRecorder
    executor: Executor
    now_ms: NowMs
    sleep: Callable[[float], None]
    new_id: Callable[[], str]
    random: Callable[[], float]

    def retry_until(self, until_ms: int, call: Callable[[], T]) -> T:
        """Call until it succeeds, at least once, or until this time. Raises the last `DestinationFault`.

        botocore's own retries don't suffice: they repeat the same request, while a message's delay depends on the
        current time, and they don't repeat requests for a missing queue, although SQS may not find a new queue for a
        second.
        """
        while True:
            try:
                return call()
            except DestinationFault:
                if self.now_ms() + RETRIED_AFTER_MS >= until_ms:
                    raise
            self.sleep(RETRIED_AFTER_MS / 1000)

    def build_record(
        self, offer: Offer, *, client_id: str, method: OfferMethod, sent_at_ms: int, trace: str | None = None
    ) -> OfferRecord:
        """Build an offer's record, with the fields of its end's event. `trace` defaults to the invocation's."""
        return OfferRecord(
            client_id=client_id,
            sent_at_ms=sent_at_ms,
            method=method,
            nat=offer.nat,
            country=UNKNOWN_COUNTRY if offer.address is None else self.recorder.look_up_country(offer.address),
            trace=trace or self.recorder.trace() or None,
            token=self.new_id(),
        )

    def build_open_offer(self, record: OfferRecord, offer: Offer, *, reply_to: str, answers_until_ms: int) -> OpenOffer:
        """Count an offer for the first pool that it tries, and build the value that proxies get."""
        self.pacing.count_offer(pools_for(offer.nat)[0])
        return OpenOffer(
            record=record,
            offer=offer.offer,
            relay=offer.bridge.websocket_address,
            reply_to=reply_to,
            answers_until_ms=answers_until_ms,
            shard=choose_shard(record.client_id, self.pacing.shards()),
        )


@dataclass(slots=True)
class Matchmaker:
    """Finds proxies for the offers of one batch, at most `offers_due` offers. Thread-safe."""

    site: RendezvousDependencies
    offers_due: int = 1
    _left: dict[Pool, deque[WaitingProxy]] = field(default_factory=dict)  # proxies read for all offers of the batch
    _tried: set[str] = field(default_factory=set)
    _queries: int = 0
    _queried: dict[Pool, int] = field(default_factory=dict)  # the number of a pool's last query
    _lock: Lock = field(default_factory=Lock)

    def match(self, offer: OpenOffer, proxy: WaitingProxy | None, *, after: int = 0) -> bool:
        """Give the offer to this proxy, or to the next one if it is gone. Returns False if none is left, or no time."""
        site = self.site
        for _ in range(MAX_TRIES):
            if proxy is None or site.now_ms() >= offer.waits_until_ms:
                break
            try:
                match = partial(site.offers.match, offer, proxy, now_ms=site.now_ms())
                is_matched = site.retry_until(min(site.now_ms() + TRY_TIMEOUT_MS, offer.waits_until_ms), match)
            except CallFailed:
                # The match may have been stored, so the same proxy may be tried again for this offer.
                is_matched = False
                with self._lock:
                    self._tried.discard(proxy.poll_id)
            if is_matched:
                leaving = site.executor.submit(site.pools.leave, proxy)
                send = partial(site.queues.send, proxy.mailbox, mailbox_message(offer, proxy.poll_id))
                try:
                    site.retry_until(min(site.now_ms() + TRY_TIMEOUT_MS, offer.waits_until_ms), send)
                except QueueGone:
                    is_matched = False
                except CallFailed:
                    pass  # The message may have been sent, and no second proxy may get the offer.
                finally:
                    leaving.exception()  # errors are ignored: the pool entry expires in seconds
            if is_matched:
                return True
            proxy = self.next_candidate(offer.record.nat, after=after)
        return False

    def wait(self, offers: Sequence[OpenOffer]) -> list[bool]:
        """Queue the offers for the next polls. Returns, for each, whether a proxy took it in the meantime.

        Raises `CallFailed` if no poll would find the offers.
        """
        site, taken, left = self.site, set[OpenOffer](), list(offers)
        while left:
            until_ms = max(offer.waits_until_ms for offer in left)
            site.retry_until(until_ms, partial(site.waiting.add, left))
            with self._lock:
                after = self._queries
            waiting, left = left, []
            for offer in waiting:
                until_ms = min(site.now_ms() + TRY_TIMEOUT_MS, offer.waits_until_ms)
                try:
                    proxy = site.retry_until(until_ms, partial(self.next_candidate, offer.record.nat, after=after))
                    if proxy is None or site.now_ms() >= offer.waits_until_ms:
                        continue
                    if not site.waiting.take(offer) or self.match(offer, proxy, after=after):
                        taken.add(offer)
                    else:
                        left.append(offer)  # The offer was taken from the queue, but its proxy is gone.
                except CallFailed:
                    continue  # The offer stays queued for polls.
        return [offer in taken for offer in offers]

    def next_candidate(self, nat: Nat, *, after: int = 0) -> WaitingProxy | None:
        """Find a proxy to try for a client, and for no other offer of the batch. Returns None if there is none.

        An empty pool is not queried again unless the caller asks for entries newer than query number `after`. Raises
        `CallFailed`.
        """
        site = self.site
        with self._lock:
            for pool in pools_for(nat):
                left = self._left.setdefault(pool, deque())
                if not left and self._queried.get(pool, 0) <= after:
                    self._queries += 1
                    waiting = site.pools.read_waiting(
                        pool,
                        now_ms=site.now_ms(),
                        limit=CANDIDATES + self.offers_due,
                        shards=site.pacing.shards(),
                        # A proxy that enters its pool during the first query may be missing there; the second query
                        # must find it.
                        consistent=after > 0,
                    )
                    self._queried[pool] = self._queries
                    new = [proxy for proxy in waiting if proxy.poll_id not in self._tried]
                    left.extend(rank_proxies(new, ties=[site.random() for _ in new]))
                if left:
                    proxy = left.popleft()
                    self._tried.add(proxy.poll_id)
                    return proxy
        return None


def mailbox_message(offer: OpenOffer, poll_id: str) -> str:
    """Build the mailbox message that brings the offer to the held poll."""
    return json.dumps({"for": poll_id} | offer.for_proxy)


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Serves offers that arrive over SQS; thread-safe."""

    site: RendezvousDependencies
    bridges: Mapping[bytes, Bridge]
    answer_prefix: str = ANSWER_QUEUE_PREFIX

    def serve(self, messages: Sequence[Message], *, executor: Executor) -> list[End | Exception]:
        """Answer or match each message at most once, however often it is delivered. `executor` runs the messages.

        Returns an end or an error for each message. With `CallFailed` or `QueueGone` its client may get no reply.
        """
        matchmaker = Matchmaker(self.site, len(messages))

        def serve_one(message: Message) -> _Served | Exception:
            try:
                return self._serve(message, matchmaker)
            except Exception as error:  # noqa: BLE001 - the message is reported as failed, whatever it was
                return error

        served = list(executor.map(serve_one, messages))
        waiting = {offer.waiting: offer for offer in served if isinstance(offer, _Served) and offer.waiting is not None}
        try:
            for offer, is_taken in zip(waiting.values(), matchmaker.wait(list(waiting)), strict=True):
                offer.end = End.OFFER_MATCHED if is_taken else End.OFFER_WAITING
        except CallFailed as error:
            for offer in waiting.values():
                offer.end = error
        return [offer if isinstance(offer, Exception) else offer.result() for offer in served]

    def _serve(self, message: Message, matchmaker: Matchmaker) -> "_Served":
        site, sent_at_ms = self.site, message.sent_at_ms or 0
        client_id = message.attributes.get(CLIENT_ID, NO_TEXT).text
        if not client_id or not is_client_id(client_id):
            return _Served(End.OFFER_ANONYMOUS)
        offer, record = self._read(message, client_id=client_id, sent_at_ms=sent_at_ms)
        if is_stale(sent_at_ms=sent_at_ms, now_ms=site.now_ms()):
            if message.receive_count > 1:
                # An earlier broker may have died after it created the queue and before it stored the record; then the
                # sweep would miss the queue. An offer that may have been swept already has its end, so it is stored as
                # refused, only for the sweep.
                may_be_swept = site.now_ms() - sent_at_ms > ANSWER_QUEUE_AGE_MS - SWEPT_SOON_MS
                site.offers.record(replace(record, end=End.OFFER_REFUSED) if may_be_swept else record)
            return _Served(End.OFFER_STALE)
        is_first, reply_to = self._receive(record)
        if not is_first:
            return _Served(End.OFFER_REPEATED)
        if isinstance(offer, OfferRefused):
            refusal = error_reply(offer.reply)
            site.retry_until(sent_at_ms + REPLY_DEADLINE_MS, lambda: site.queues.send(reply_to, refusal))
            return _Served(End.OFFER_REFUSED)
        answers_until_ms = answers_until(sent_at_ms=sent_at_ms, now_ms=site.now_ms())
        opened = site.build_open_offer(record, offer, reply_to=reply_to, answers_until_ms=answers_until_ms)
        try:
            proxy = None if site.now_ms() >= opened.waits_until_ms else matchmaker.next_candidate(offer.nat)
        except CallFailed:
            proxy = None  # The offer can still wait for a poll.
        delayed_replies = [self._send_delayed_reply(opened, End.OFFER_TIMED_OUT if proxy else End.OFFER_DENIED)]
        if matchmaker.match(opened, proxy):
            return _Served(End.OFFER_MATCHED, delayed_replies)
        if proxy is not None:
            # Other brokers matched all proxies first. The reply without proxies has to arrive before the time-out
            # reply.
            opened = replace(opened, answers_until_ms=opened.answers_until_ms - 1000)
            delayed_replies.append(self._send_delayed_reply(opened, End.OFFER_DENIED, sooner_s=1))
        return _Served(End.OFFER_WAITING, delayed_replies, opened)

    def _read(self, message: Message, *, client_id: str, sent_at_ms: int) -> tuple[Offer | OfferRefused, OfferRecord]:
        try:
            offer = parse_offer(message.body, bridges=self.bridges)
        except OfferRefused as refused:
            return refused, OfferRecord(
                client_id=client_id,
                sent_at_ms=sent_at_ms,
                method=OfferMethod.SQS,
                end=End.OFFER_REFUSED,
                token=self.site.new_id(),
            )
        # Lambda's own trace is that of the whole batch, and only links to the messages' traces.
        trace = message.trace_header
        return offer, self.site.build_record(
            offer, client_id=client_id, method=OfferMethod.SQS, sent_at_ms=sent_at_ms, trace=trace
        )

    def _receive(self, record: OfferRecord) -> tuple[bool, str]:
        """Record an offer and create its answer queue, concurrently. Returns whether it is new, and the queue's URL.

        The sweep finds queues by their records. If only the record fails, the message is redelivered and recorded then.
        """
        site, until_ms = self.site, record.sent_at_ms + PATIENCE_MS
        name = self.answer_prefix + record.client_id
        recording = site.executor.submit(site.retry_until, until_ms, lambda: site.offers.record(record))
        try:
            reply_to = site.retry_until(until_ms, lambda: site.queues.create(name, ANSWER_QUEUE_ATTRIBUTES))
        finally:
            is_first = recording.result()
        return is_first, reply_to

    def _send_delayed_reply(self, offer: OpenOffer, end: End, *, sooner_s: int = 0) -> "Future[None]":
        """Send the delayed time-out reply, which the client gets if no proxy answers."""
        site, sent_at_ms = self.site, offer.record.sent_at_ms

        def send() -> None:
            delay_s = reply_delay_s(
                sent_at_ms=sent_at_ms - 1000 * sooner_s,
                answers_until_ms=offer.answers_until_ms,
                now_ms=site.now_ms(),
            )
            site.queues.send(offer.reply_to, error_reply(end.reply), delay_s=delay_s)

        return site.executor.submit(site.retry_until, sent_at_ms + REPLY_DEADLINE_MS, send)


@dataclass(slots=True, eq=False)
class _Served:
    """An offer in progress: `end` holds if `delayed_replies` succeed; the offer in `waiting` must still be queued."""

    end: End | Exception
    delayed_replies: "Sequence[Future[None]]" = ()
    waiting: OpenOffer | None = None

    def result(self) -> End | Exception:
        """Wait for the time-out replies to be sent. Returns the end, or the first error."""
        errors = [delayed_reply.exception() for delayed_reply in self.delayed_replies]
        return next((error for error in errors if isinstance(error, Exception)), self.end)
