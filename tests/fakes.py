"""In-memory stand-ins for what the rendezvous asks of AWS. The contract suite holds them to the adapters' promises."""

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.counts.statistics import Counts, Position, Tally
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.ports import Claim, NowMs, OfferRecord, OfferState
from sluice.rendezvous.protocol.matching import HOLD_MS, PATIENCE_MS, Pool, Profile, WaitingProxy


@dataclass
class Clock:
    """A clock that only tests move."""

    ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@dataclass
class FakePools:
    """Waiting proxies in a dict."""

    proxies: dict[str, WaitingProxy] = field(default_factory=dict)
    demand: Counter[tuple[Pool, int]] = field(default_factory=Counter)
    questions: int = 0

    def enter(self, proxy: WaitingProxy) -> None:
        self.proxies[proxy.poll_id] = proxy

    def leave(self, proxy: WaitingProxy) -> bool:
        return self.proxies.pop(proxy.poll_id, None) is not None

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        self.questions += 1
        here = [proxy for proxy in list(self.proxies.values()) if proxy.pool is pool]
        return sorted(here, key=lambda proxy: (proxy.clients, proxy.polled_at_ms, proxy.poll_id))[:limit]

    def count(self, pool: Pool, *, now_ms: int) -> int:
        return sum(proxy.pool is pool and proxy.waits_until_ms > now_ms for proxy in self.proxies.values())

    def profiles(self, pool: Pool, *, now_ms: int) -> Sequence[Profile]:
        here = [proxy for proxy in self.proxies.values() if proxy.pool is pool and proxy.waits_until_ms > now_ms]
        return [proxy.profile for proxy in here]

    def note_offers(self, pool: Pool, number: int, *, now_ms: int) -> None:
        self.demand[pool, now_ms // HOLD_MS] += number

    def recent_offers(self, pool: Pool, *, now_ms: int) -> int:
        slot = now_ms // HOLD_MS
        return max(self.demand[pool, slot], self.demand[pool, slot - 1])


@dataclass
class FakeOfferStore:
    """Offers in a dict; its lock stands for the conditional writes."""

    pools: FakePools
    offers: dict[tuple[str, int], OfferRecord] = field(default_factory=dict)
    matches: dict[str, tuple[str, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, offer: OfferRecord) -> OfferRecord | None:
        with self.lock:
            earlier = self.offers.get(_key(offer))
            if earlier is None:
                self.offers[_key(offer)] = offer
            return earlier

    def claim(self, offer: OfferRecord, proxy: WaitingProxy, *, reply_to: str, now_ms: int) -> Claim:
        with self.lock:
            if self.offers[_key(offer)].state is not OfferState.RECEIVED:
                return Claim.OFFER_TAKEN
            match = self.matches.get(proxy.sid)
            busy = match is not None and match[1] >= now_ms - PATIENCE_MS
            if busy or proxy.poll_id not in self.pools.proxies or proxy.waits_until_ms <= now_ms:
                return Claim.PROXY_TAKEN
            del self.pools.proxies[proxy.poll_id]
            self.matches[proxy.sid] = _key(offer)
            self.offers[_key(offer)] = replace(
                self.offers[_key(offer)],
                state=OfferState.MATCHED,
                reply_to=reply_to,
                proxy=proxy,
                matched_at_ms=now_ms,
                nat=offer.nat,
                country=offer.country,
                trace=offer.trace,
            )
            return Claim.WON

    def release(self, offer: OfferRecord, proxy: WaitingProxy) -> None:
        self._move(offer, OfferState.MATCHED, OfferState.RECEIVED, sid=proxy.sid)

    def answer(self, sid: str) -> OfferRecord | None:
        key = self.matches.get(sid)
        match = self.offers.get(key) if key else None
        return self._move(match, OfferState.MATCHED, OfferState.ANSWERED, sid=sid) if match else None

    def unanswer(self, offer: OfferRecord) -> None:
        self._move(offer, OfferState.ANSWERED, OfferState.MATCHED, sid=_sid(offer))

    def time_out(self, offer: OfferRecord) -> OfferRecord | None:
        return self._move(offer, OfferState.MATCHED, OfferState.TIMED_OUT, sid=_sid(offer))

    def _move(self, offer: OfferRecord, before: OfferState, after: OfferState, *, sid: str) -> OfferRecord | None:
        with self.lock:
            stands = self.offers.get(_key(offer))
            if stands is None or stands.state is not before or (sid and _sid(stands) != sid):
                return None
            self.offers[_key(offer)] = replace(stands, state=after)
            return self.offers[_key(offer)]

    def matched(self, *, since_ms: int, until_ms: int) -> Sequence[OfferRecord]:
        found = [
            offer
            for offer in self.offers.values()
            if offer.state is OfferState.MATCHED and since_ms <= offer.sent_at_ms <= until_ms
        ]
        return sorted(found, key=lambda offer: offer.sent_at_ms)

    def sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        yield sorted(
            (offer for offer in self.offers.values() if offer.sent_at_ms < until_ms),
            key=lambda offer: offer.sent_at_ms,
        )

    def forget(self, offers: Sequence[OfferRecord]) -> None:
        for offer in offers:
            del self.offers[_key(offer)]


def _sid(offer: OfferRecord) -> str:
    return offer.proxy.sid if offer.proxy else ""


def _key(offer: OfferRecord) -> tuple[str, int]:
    return offer.client_id, offer.sent_at_ms


@dataclass
class FakeMailboxStore:
    """Notes in a dict."""

    notes: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, *, created_at_ms: int) -> None:
        self.notes[name] = created_at_ms

    def created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        yield sorted(((name, at) for name, at in self.notes.items() if at < until_ms), key=lambda note: note[1])

    def forget(self, mailboxes: Sequence[tuple[str, int]]) -> None:
        for name, _ in mailboxes:
            del self.notes[name]


@dataclass
class FakeQueues:
    """Queues in lists. A waiting receive moves the clock on instead of sleeping, and `arrivals` come meanwhile.

    A new queue isn't there for `appears_after_ms`, as AWS may have it for a second.
    """

    clock: Clock = field(default_factory=Clock)
    queues: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    made: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)
    failing: dict[str, CallFailed] = field(default_factory=dict)
    delays: list[int] = field(default_factory=list)
    arrivals: list[str] = field(default_factory=list)
    appears_after_ms: int = 0
    appears_at_ms: dict[str, int] = field(default_factory=dict)

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        if url(name) not in self.made:
            self.appears_at_ms[url(name)] = self.clock.ms + self.appears_after_ms
        self.made.add(url(name))
        return url(name)

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        self._check(url)
        self.queues[url].append(body)
        self.delays.append(delay_s)

    def receive(self, url: str, *, wait_s: int) -> str | None:
        self._check(url)
        if self.queues[url]:
            return self.queues[url].pop(0)
        self.clock.ms += wait_s * 1000
        return self.arrivals.pop(0) if self.arrivals else None

    def delete(self, name: str) -> bool:
        if url(name) in self.failing:
            raise self.failing[url(name)]
        if url(name) not in self.made:
            return False
        self.made.remove(url(name))
        self.deleted.append(name)
        return True

    def _check(self, url: str) -> None:
        if url in self.failing:
            raise self.failing[url]
        if url not in self.made or self.clock.ms < self.appears_at_ms.get(url, 0):
            raise QueueGone(url)


@dataclass
class FakeStatisticsStore:
    """Counts in dicts, and remembers every position. `failing` is why nothing can be counted."""

    counts: Counts = field(default_factory=Counter)
    days: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counter))
    marks: set[tuple[str, str, str]] = field(default_factory=set)
    positions: set[Position] = field(default_factory=set)
    failing: str = ""

    def add(self, tallies: Sequence[Tally]) -> Mapping[Position, str]:
        if self.failing:
            return {tally.position: self.failing for tally in tallies}
        uncounted = [tally for tally in tallies if tally.position not in self.positions]
        for tally in uncounted:
            new = [mark.count for mark in tally.marks if (tally.day, mark.address, mark.what) not in self.marks]
            self.marks |= {(tally.day, mark.address, mark.what) for mark in tally.marks}
            self.counts.update(tally.counts)
            self.days[tally.day].update(tally.counts)
            self.days[tally.day].update(new)
            self.positions.add(tally.position)
        return {}

    def totals(self) -> Counts:
        return Counter(self.counts)

    def of_day(self, day: str) -> Counts:
        return Counter(self.days.get(day, Counter()))


def recorder_of(now_ms: NowMs) -> EventRecorder:
    """Every address is German, and its hash says what it is of."""
    ids = (f"event{number}" for number in itertools.count())
    return EventRecorder(
        country_of=lambda address: "DE" if address else "??",
        hash_of=lambda address: f"hash of {address}" if address else None,
        trace=lambda: "Root=1-0-0",
        now_ms=now_ms,
        new_id=lambda: next(ids),
    )


def url(name: str) -> str:
    return f"https://sqs.test/000000000000/{name}"
