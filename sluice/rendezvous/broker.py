"""Gets offers their proxies. `Broker` serves those that came over SQS, `Matchmaker` finds proxies for all of them.

The answer queue comes first, then a proxy, or the reason why there is none; a *tick* sees to it that the client hears
something in the end (`timeouts`).
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock

from sluice.errors import Malformed, OfferRefused, QueueGone
from sluice.rendezvous.counts.events import OfferOutcome
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.ports import Claim, NowMs, OfferRecord, OfferState, OfferStore, ProxyPools, Queues
from sluice.rendezvous.protocol.matching import PATIENCE_MS, Pool, WaitingProxy, in_order, is_stale, pools_for
from sluice.rendezvous.protocol.messages import (
    ANSWER_QUEUE_PREFIX,
    NO_PROXIES,
    Bridge,
    Offer,
    OfferMethod,
    error_reply,
    is_client_id,
    parse_offer,
    read_object,
)

# A client reads once and never deletes; its queue is swept after two minutes.
ANSWER_QUEUE_ATTRIBUTES = {"MessageRetentionPeriod": "300"}
CANDIDATES = 50  # read at once: more than a batch needs, as other brokers take some of them
MAX_CLAIMS = 100  # tried for one offer, of a pool in which everything is being taken
LATEST_MS = 1_000  # how much later than its due time an offer may be timed out
EARLIEST_MS = 1_500  # a tick that comes sooner may be reading the store already, before the offer is in it


class OfferMetric(StrEnum):
    """What became of an offer, over SQS or HTTP, as it is counted. Each is a metric."""

    MATCHED = "OffersMatched"
    DENIED = "OffersDenied"
    REFUSED = "OffersRefused"  # malformed, or for a bridge we don't know: the client has the reason
    STALE = "OffersStale"  # its client gave up before we saw it
    REPEATED = "OffersRepeated"  # delivered again after it was served
    ANONYMOUS = "OffersAnonymous"  # without a ClientID there is nobody to reply to
    TIMED_OUT = "OffersTimedOut"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferMessage:
    """A message in the offers queue, as it came. `trace` is the X-Ray trace header that its client gave it."""

    client_id: str
    body: str
    sent_at_ms: int
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Serves offers over SQS; safe for threads."""

    offers: OfferStore
    queues: Queues
    armer: "TickArmer"
    bridges: Mapping[bytes, Bridge]
    now_ms: NowMs
    recorder: EventRecorder

    def serve(  # noqa: PLR0911 - one for each metric
        self, message: OfferMessage, matchmaker: "Matchmaker"
    ) -> OfferMetric:
        """Reply or match, at most once for each message however often it is delivered.

        Raises what the requests to AWS raise; then nothing is lost by another delivery.
        """
        if not is_client_id(message.client_id):
            return OfferMetric.ANONYMOUS
        if is_stale(sent_at_ms=message.sent_at_ms, now_ms=self.now_ms()):
            return OfferMetric.STALE
        record = OfferRecord(client_id=message.client_id, sent_at_ms=message.sent_at_ms, method=OfferMethod.SQS)
        # Written before the queue is made, so that the sweeper knows of every queue there is.
        earlier = self.offers.record(record)
        if earlier is not None and earlier.state in {OfferState.ANSWERED, OfferState.TIMED_OUT}:
            return OfferMetric.REPEATED
        reply_to = self.queues.create(ANSWER_QUEUE_PREFIX + message.client_id, ANSWER_QUEUE_ATTRIBUTES)
        try:
            offer = parse_offer(
                message.body,
                client_id=message.client_id,
                method=OfferMethod.SQS,
                sent_at_ms=message.sent_at_ms,
                bridges=self.bridges,
            )
        except OfferRefused as refused:
            self.queues.send(reply_to, error_reply(refused.reply))
            return OfferMetric.REFUSED
        if earlier is not None and earlier.state is OfferState.MATCHED and earlier.proxy is not None:
            # The first delivery may have ended between the claim and what follows it, so that is done again. The
            # mailbox's owner ignores a letter for a poll that it has answered.
            self.queues.send(earlier.proxy.mailbox, offer_letter(offer, earlier.proxy.poll_id))
            self.armer.cover(sent_at_ms=offer.sent_at_ms)
            return OfferMetric.REPEATED
        record = self.recorder.described(record, offer, trace=message.trace)
        if not matchmaker.match(offer, record, reply_to=reply_to):
            self.queues.send(reply_to, error_reply(NO_PROXIES))
            self.recorder.offer_ended(record, OfferOutcome.DENIED)
            return OfferMetric.DENIED
        self.armer.cover(sent_at_ms=offer.sent_at_ms)
        return OfferMetric.MATCHED


@dataclass(slots=True, kw_only=True)
class Matchmaker:
    """Finds proxies for the offers of one batch: candidates in order, each handed out once. Safe for threads."""

    offers: OfferStore
    pools: ProxyPools
    queues: Queues
    now_ms: NowMs
    random: Callable[[], float]
    _left: dict[Pool, deque[WaitingProxy]] = field(default_factory=dict)
    _handed_out: set[str] = field(default_factory=set)
    _dry: set[Pool] = field(default_factory=set)
    _asked: Counter[Pool] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def match(self, offer: Offer, record: OfferRecord, *, reply_to: str) -> bool:
        """Say whether the offer got a proxy, which then has it in its mailbox: one conditional write a candidate.

        Also True where another delivery of the same offer was faster. Raises `CallFailed`.
        """
        wanted = pools_for(offer.nat)
        with self._lock:
            self._asked[wanted[0]] += 1
        for _ in range(MAX_CLAIMS):
            proxy = self._next(wanted)
            if proxy is None:
                return False
            claim = self.offers.claim(record, proxy, reply_to=reply_to, now_ms=self.now_ms())
            if claim is Claim.OFFER_TAKEN:
                return True
            if claim is not Claim.WON:
                continue
            try:
                self.queues.send(proxy.mailbox, offer_letter(offer, proxy.poll_id))
            except QueueGone:
                self.offers.release(record, proxy)
            else:
                return True
        return False

    def _next(self, wanted: tuple[Pool, ...]) -> WaitingProxy | None:
        """Find the next proxy to try from the wanted pools, or None where all have been tried."""
        with self._lock:
            for pool in wanted:
                left = self._left.setdefault(pool, deque())
                if not left and pool not in self._dry:
                    waiting = self.pools.waiting(pool, limit=CANDIDATES + len(self._handed_out))
                    new = [proxy for proxy in waiting if proxy.poll_id not in self._handed_out]
                    left.extend(in_order(new, now_ms=self.now_ms(), ties=[self.random() for _ in new]))
                if left:
                    proxy = left.popleft()
                    self._handed_out.add(proxy.poll_id)
                    return proxy
                # A pool that had nothing new is not asked again for this batch: each question costs a read.
                self._dry.add(pool)
        return None

    def note_demand(self) -> None:
        """Tell the pools how many offers the batch had for them: one write a pool. Raises `CallFailed`."""
        for pool, number in self._asked.items():
            self.pools.note_offers(pool, number, now_ms=self.now_ms())
        self._asked.clear()


def offer_letter(offer: Offer, poll_id: str) -> str:
    """Write what the function that holds the poll finds in its mailbox."""
    return json.dumps({"for": poll_id, "offer": offer.offer, "nat": offer.nat, "relay": offer.bridge.websocket_address})


@dataclass(frozen=True, slots=True)
class TimeoutTick:
    """A delayed message: when it comes, offers sent at or after `from_ms` are looked at."""

    from_ms: int

    def body(self) -> str:
        """Write it as it travels."""
        return json.dumps({"from": self.from_ms})

    @classmethod
    def parse(cls, body: str) -> "TimeoutTick":
        """Read what `body` wrote. Raises `Malformed`."""
        fields = read_object(body, {"from": int})
        if "from" not in fields:
            raise Malformed("no from")
        return cls(fields["from"])


@dataclass(slots=True)
class TickArmer:
    """Arms ticks, and remembers the last one so that the next offers share it. Safe for threads."""

    send: Callable[[TimeoutTick, int], None]  # the tick, and its delay in seconds
    now_ms: NowMs
    _fires_at_ms: int = 0
    _lock: Lock = field(default_factory=Lock)

    def cover(self, *, sent_at_ms: int) -> None:
        """See to it that a tick comes when this offer, matched by now, is due. Raises what `send` raises."""
        due_ms = sent_at_ms + PATIENCE_MS
        with self._lock:
            now_ms = self.now_ms()
            if now_ms + EARLIEST_MS <= self._fires_at_ms <= due_ms + LATEST_MS:
                return
            delay_s = seconds_until(due_ms, now_ms=now_ms)
            # Whatever is matched from now on was sent after this: older offers are stale.
            self.send(TimeoutTick(now_ms - PATIENCE_MS), delay_s)
            self._fires_at_ms = now_ms + delay_s * 1000


def seconds_until(due_ms: int, *, now_ms: int) -> int:
    """Count whole seconds, as SQS delays messages, rounded up and at least 1."""
    return max(-(-(due_ms - now_ms) // 1000), 1)
