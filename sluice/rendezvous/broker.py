"""The broker: finds proxies for offers, and serves offers that arrive over SQS.

For each offer, the broker creates the client's answer queue. Then it finds a proxy, or queues the offer for the next
polls. A client reads only one message from its queue, so no other reply may be there while an answer can arrive:

- If a proxy has the offer, the time-out reply is delayed until long after the last answer is accepted.
- If the offer waits, its message stays in the offers queue until a proxy answers, or is redelivered when the wait is
  over. Then a broker denies the offer if it still waits, and sends the delayed time-out reply if a proxy took it and
  hasn't answered yet.

An offer and a poll each record themselves as waiting before they look for a partner, so of two that arrive together at
least one finds the other.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
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
    ANSWERS_MS,
    PATIENCE_MS,
    TIME_OUT_REPLY_MS,
    Nat,
    OfferMethod,
    OfferRecord,
    OpenOffer,
    Pool,
    WaitingProxy,
    choose_shard,
    is_stale,
    list_pools_for_client,
    rank_proxies,
    seconds_until,
)
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    Bridge,
    Offer,
    is_client_id,
    parse_offer,
    write_error_reply,
)
from sluice.times import NowMs

if TYPE_CHECKING:  # These imports are only for type hints: the adapters are passed in as arguments.
    from sluice.aws.queues import SqsQueues
    from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
    from sluice.aws.rendezvous.waiting import DynamoWaitingOffers

T = TypeVar("T")

CLIENT_ID = "ClientID"  # Clients send their id in this message attribute.
NO_TEXT = Value("String", "")

# A client reads one message from its answer queue and deletes nothing. The sweep deletes the queue after two minutes.
ANSWER_QUEUE_ATTRIBUTES = {"MessageRetentionPeriod": "300"}
RETRIED_AFTER_MS = 250
CANDIDATES = 4  # A query of a pool reads this many proxies, plus one for each offer of the batch.
MAX_TRIES = 20  # An offer is tried with at most this many proxies, because other brokers may match them first.
TRY_TIMEOUT_MS = 1_500  # A call for one proxy is retried for this time, because SQS may not find a new mailbox at once.
SWEPT_SOON_MS = 10_000
REPLY_TIMEOUT_MS = 3_000  # A reply to a client is retried for this time.
UNDECIDED = frozenset({End.OFFER_WAITING, End.OFFER_REPEATED})  # Messages of offers with these ends are redelivered.


class RendezvousDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of a rendezvous function, shared by all invocations of one environment; thread-safe.

    `executor` runs independent calls concurrently, `sleep` takes seconds, `random` returns a number in [0, 1).
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
        """Repeat the call until it succeeds or this time is reached. Raises the last `DestinationFault`.

        botocore's own retries don't suffice. They repeat the same request, but a message's delay depends on the current
        time. They also don't retry after a missing queue, although SQS may not find a new queue for a second.
        """
        while True:
            try:
                return call()
            except DestinationFault:
                if self.now_ms() + RETRIED_AFTER_MS >= until_ms:
                    raise
            self.sleep(RETRIED_AFTER_MS / 1000)

    def complete_record(self, record: OfferRecord, offer: Offer) -> OfferRecord:
        """Add to a record what the event of its offer's end needs. The trace defaults to the invocation's trace."""
        return replace(
            record,
            nat=offer.nat,
            country=UNKNOWN_COUNTRY if offer.address is None else self.recorder.look_up_country(offer.address),
            trace=record.trace or self.recorder.trace() or None,
            token=self.new_id(),
            waiting_shard=choose_shard(record.client_id, self.pacing.count_shards()),
        )

    def build_open_offer(self, record: OfferRecord, offer: Offer, *, reply_to: str, answers_until_ms: int) -> OpenOffer:
        """Count an offer for its first pool, and build the `OpenOffer` that a proxy can get."""
        self.pacing.count_offer(list_pools_for_client(offer.nat)[0])
        return OpenOffer(
            record=record,
            offer=offer.offer,
            relay=offer.bridge.websocket_address,
            reply_to=reply_to,
            answers_until_ms=answers_until_ms,
            shard=record.waiting_shard,
        )


@dataclass(slots=True)
class Matchmaker:
    """Finds proxies for the offers of one batch, at most `offers_due` offers. Thread-safe."""

    site: RendezvousDependencies
    offers_due: int = 1
    _candidates: dict[Pool, deque[WaitingProxy]] = field(default_factory=dict)  # proxies read for the whole batch
    _tried_poll_ids: set[str] = field(default_factory=set)
    _query_count: int = 0
    _last_query_numbers: dict[Pool, int] = field(default_factory=dict)  # number of a pool's last query
    _lock: RLock = field(default_factory=RLock)

    def match(self, offer: OpenOffer, proxy: WaitingProxy | None, *, after: int = 0) -> bool:
        """Give the offer to this proxy, or to the next candidates. Returns False if no proxy or no time is left."""
        site = self.site
        for _ in range(MAX_TRIES):
            if proxy is None or site.now_ms() >= offer.waits_until_ms:
                break
            try:
                match = partial(site.offers.match, offer, proxy, now_ms=site.now_ms())
                is_matched = site.retry_until(min(site.now_ms() + TRY_TIMEOUT_MS, offer.waits_until_ms), match)
            except CallFailed:
                # The match may have been stored, so this proxy may be tried again for the same offer.
                is_matched = False
                with self._lock:
                    self._tried_poll_ids.discard(proxy.poll_id)
            if is_matched:
                leaving = site.executor.submit(site.pools.remove_proxy, proxy)
                send = partial(site.queues.send, proxy.mailbox, build_mailbox_message(offer, proxy.poll_id))
                try:
                    site.retry_until(min(site.now_ms() + TRY_TIMEOUT_MS, offer.waits_until_ms), send)
                except QueueGone:
                    is_matched = False
                except CallFailed:
                    pass  # The message may have been sent, so no second proxy may get the offer.
                finally:
                    leaving.exception()  # Ignore errors, since the pool entry expires in seconds.
            if is_matched:
                return True
            proxy = self.next_candidate(offer.record.nat, after=after)
        return False

    def wait(self, offers: Sequence[OpenOffer]) -> list[bool]:
        """Queue the offers for the next polls. Returns, for each offer, whether a proxy took it in the meantime.

        Raises `CallFailed` if the offers couldn't be queued.
        """
        site, taken, left = self.site, set[OpenOffer](), list(offers)
        while left:
            until_ms = max(offer.waits_until_ms for offer in left)
            site.retry_until(until_ms, partial(site.waiting.add, left))
            with self._lock:
                after = self._query_count
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
                        left.append(offer)  # The offer is no longer queued, but its proxy is gone.
                except CallFailed:
                    continue  # The offer stays queued for polls.
        return [offer in taken for offer in offers]

    def next_candidate(self, nat: Nat, *, after: int = 0) -> WaitingProxy | None:
        """Find a proxy to try for a client. Returns None if no proxy is left. Raises `CallFailed`.

        No other offer of the batch gets the same proxy.
        """
        with self._lock:
            left = self.read_candidates(nat, after=after)
            if not left:
                return None
            proxy = left.popleft()
            self._tried_poll_ids.add(proxy.poll_id)
            return proxy

    def read_candidates(self, nat: Nat, *, after: int = 0) -> deque[WaitingProxy]:
        """Return the proxies left to try, from the client's first pool that isn't empty.

        None are left if all are empty. An empty pool is not queried again unless the caller asks for entries newer than
        query number `after`. Raises `CallFailed`.
        """
        site = self.site
        with self._lock:
            for pool in list_pools_for_client(nat):
                left = self._candidates.setdefault(pool, deque())
                if not left and self._last_query_numbers.get(pool, 0) <= after:
                    self._query_count += 1
                    waiting = site.pools.read_waiting(
                        pool,
                        now_ms=site.now_ms(),
                        limit=CANDIDATES + self.offers_due,
                        shards=site.pacing.count_shards(),
                        # The first query may miss a proxy that enters its pool meanwhile; the second must find it.
                        consistent=after > 0,
                    )
                    self._last_query_numbers[pool] = self._query_count
                    new = [proxy for proxy in waiting if proxy.poll_id not in self._tried_poll_ids]
                    left.extend(rank_proxies(new, ties=[site.random() for _ in new]))
                if left:
                    return left
        return deque()


def build_mailbox_message(offer: OpenOffer, poll_id: str) -> str:
    """Build the mailbox message that brings the offer to the held poll, with the fields that the answer needs."""
    return json.dumps({"for": poll_id} | offer.for_proxy | offer.for_answer)


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Serves offers that arrive over SQS; thread-safe."""

    site: RendezvousDependencies
    bridges: Mapping[bytes, Bridge]
    answer_prefix: str = ANSWER_QUEUE_PREFIX

    def serve(self, messages: Sequence[Message], *, executor: Executor) -> list[End | Exception | None]:
        """Answer or match each offer at most once, however often its message is delivered.

        `executor` runs the messages. Returns an end or an error for each message, or None if nothing was left to do.
        After `CallFailed` or `QueueGone` the client may get no reply. Messages in `list_redeliveries` must be
        redelivered.
        """
        matchmaker = Matchmaker(self.site, len(messages))

        def serve_message(message: Message) -> _OfferResult | Exception:
            try:
                return self._serve_message(message, matchmaker)
            except Exception as error:  # noqa: BLE001 - the message is reported as failed, whatever it was
                return error

        served = list(executor.map(serve_message, messages))
        waiting = {offer.waiting: offer for offer in served if isinstance(offer, _OfferResult) and offer.waiting}
        try:
            for (opened, offer), is_taken in zip(waiting.items(), matchmaker.wait(list(waiting)), strict=True):
                if is_taken:
                    offer.end = End.OFFER_MATCHED
                    offer.time_out_reply = offer.time_out_reply or self._send_time_out_reply(opened)
        except CallFailed as error:
            for offer in waiting.values():
                offer.end = error
        return [offer if isinstance(offer, Exception) else offer.result() for offer in served]

    def list_redeliveries(
        self, messages: Sequence[Message], ends: Sequence[End | Exception | None]
    ) -> Mapping[int, int]:
        """Return the seconds until redelivery of each message whose offer is undecided, by the message's position."""
        now_ms = self.site.now_ms()
        return {
            position: seconds_until((message.sent_at_ms or 0) + PATIENCE_MS, now_ms=now_ms)
            for position, (message, end) in enumerate(zip(messages, ends, strict=True))
            if end in UNDECIDED
        }

    def _serve_message(self, message: Message, matchmaker: Matchmaker) -> "_OfferResult":
        site, sent_at_ms = self.site, message.sent_at_ms or 0
        client_id = message.attributes.get(CLIENT_ID, NO_TEXT).text
        if not client_id or not is_client_id(client_id):
            return _OfferResult(End.OFFER_ANONYMOUS)
        offer, record = self._parse(message, client_id=client_id, sent_at_ms=sent_at_ms)
        if is_stale(sent_at_ms=sent_at_ms, now_ms=site.now_ms()):
            return self._settle_redelivery(record) if message.receive_count > 1 else _OfferResult(End.OFFER_STALE)
        is_first, reply_to = self._record_offer(record, matchmaker)
        if not is_first:
            return _OfferResult(End.OFFER_REPEATED)
        if isinstance(offer, OfferRefused):
            refusal = write_error_reply(offer.reply)
            site.retry_until(site.now_ms() + REPLY_TIMEOUT_MS, lambda: site.queues.send(reply_to, refusal))
            return _OfferResult(End.OFFER_REFUSED)
        opened = site.build_open_offer(record, offer, reply_to=reply_to, answers_until_ms=sent_at_ms + ANSWERS_MS)
        try:
            proxy = None if site.now_ms() >= opened.waits_until_ms else matchmaker.next_candidate(offer.nat)
        except CallFailed:
            proxy = None  # The offer can still wait for a poll.
        # The reply is sent before the match, so that the client gets it even if the broker dies in between.
        time_out_reply = None if proxy is None else self._send_time_out_reply(opened)
        if matchmaker.match(opened, proxy):
            return _OfferResult(End.OFFER_MATCHED, time_out_reply)
        return _OfferResult(End.OFFER_WAITING, time_out_reply, opened)

    def _parse(self, message: Message, *, client_id: str, sent_at_ms: int) -> tuple[Offer | OfferRefused, OfferRecord]:
        record = OfferRecord(client_id=client_id, sent_at_ms=sent_at_ms, method=OfferMethod.SQS)
        try:
            offer = parse_offer(message.body, bridges=self.bridges)
        except OfferRefused as refused:
            return refused, replace(record, end=End.OFFER_REFUSED, token=self.site.new_id())
        # The invocation's own trace covers the whole batch and only links to the traces of its messages.
        record = replace(record, trace=message.trace_header, receipt_handle=message.receipt_handle)
        return offer, self.site.complete_record(record, offer)

    def _record_offer(self, record: OfferRecord, matchmaker: Matchmaker) -> tuple[bool, str]:
        """Store an offer's record, create its answer queue and find candidates, all concurrently.

        Returns whether the offer is new, and the queue's URL. The sweep finds queues by their records. If only storing
        the record fails, the message is redelivered and recorded then. If only reading the candidates fails, they are
        read later.
        """
        site, until_ms = self.site, record.sent_at_ms + PATIENCE_MS
        name = self.answer_prefix + record.client_id
        recording = site.executor.submit(site.retry_until, until_ms, lambda: site.offers.record(record))
        reading = None if record.end else site.executor.submit(matchmaker.read_candidates, record.nat)
        try:
            reply_to = site.retry_until(until_ms, lambda: site.queues.create(name, ANSWER_QUEUE_ATTRIBUTES))
        finally:
            if reading is not None:
                reading.exception()
            is_first = recording.result()
        return is_first, reply_to

    def _settle_redelivery(self, record: OfferRecord) -> "_OfferResult":
        """Deny a redelivered offer that still waits. If a proxy has it but hasn't answered, send the time-out reply."""
        site, now_ms = self.site, self.site.now_ms()
        until_ms = now_ms + REPLY_TIMEOUT_MS
        stored = site.retry_until(until_ms, partial(site.offers.read, record, consistent=False))
        if stored is not None and stored.end is not None:
            return _OfferResult(None)
        if stored is None:
            # An earlier broker may have died after creating the queue and before storing the record, so that the sweep
            # wouldn't find the queue. A record that is stored so late already has an end, only for the sweep.
            may_be_swept = now_ms - record.sent_at_ms > ANSWER_QUEUE_AGE_MS - SWEPT_SOON_MS
            if site.offers.record(replace(record, end=End.OFFER_REFUSED) if may_be_swept else record):
                return _OfferResult(End.OFFER_STALE)
        record = stored or record
        reply_to = site.queues.url(self.answer_prefix + record.client_id)
        opened = OpenOffer(
            record=record, offer="", relay="", reply_to=reply_to, answers_until_ms=0, shard=record.waiting_shard
        )
        if not site.retry_until(until_ms, lambda: site.waiting.take(opened)):
            # Another delivery of the message may have taken and denied the offer just now.
            stored = site.retry_until(until_ms, partial(site.offers.read, record, consistent=True))
            has_ended = stored is None or stored.end is not None
            return _OfferResult(None, None if has_ended else self._send_time_out_reply(opened))
        # Without a stored end, the sweep would assume that a proxy received the offer, since it no longer waits.
        site.retry_until(until_ms, lambda: site.offers.end(record, End.OFFER_DENIED, now_ms=now_ms))
        denial = write_error_reply(End.OFFER_DENIED.reply)
        site.retry_until(until_ms, lambda: site.queues.send(reply_to, denial))
        return _OfferResult(End.OFFER_DENIED)

    def _send_time_out_reply(self, offer: OpenOffer) -> "Future[None]":
        """Send the delayed time-out reply, which the client gets if no proxy's answer arrives before."""
        site, visible_at_ms = self.site, offer.record.sent_at_ms + TIME_OUT_REPLY_MS

        def send() -> None:
            delay_s = seconds_until(visible_at_ms, now_ms=site.now_ms())
            site.queues.send(offer.reply_to, write_error_reply(End.OFFER_TIMED_OUT.reply), delay_s=delay_s)

        return site.executor.submit(site.retry_until, site.now_ms() + REPLY_TIMEOUT_MS, send)


@dataclass(slots=True, eq=False)
class _OfferResult:
    """The result for one offer. `end` holds only if `time_out_reply` succeeds; `waiting` still has to be queued."""

    end: End | Exception | None
    time_out_reply: "Future[None] | None" = None
    waiting: OpenOffer | None = None

    def result(self) -> End | Exception | None:
        """Wait until the time-out reply is sent. Returns the end, or the error if sending failed."""
        error = self.time_out_reply and self.time_out_reply.exception()
        return error if isinstance(error, Exception) else self.end
