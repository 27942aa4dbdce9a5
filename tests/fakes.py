"""In-memory stand-ins for what the rendezvous asks of AWS. The contract suite holds them to the adapters' promises."""

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sluice.errors import CallFailed, QueueGone
from sluice.rendezvous.broker import Matchmaker, RendezvousDependencies
from sluice.rendezvous.counts import statistics
from sluice.rendezvous.counts.statistics import Tally
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import (
    Match,
    OfferRecord,
    OpenOffer,
    Pool,
    Profile,
    WaitingProxy,
    list_pools_for_client,
)
from sluice.rendezvous.protocol.pace import Counts
from sluice.times import HOUR_MS, MINUTE_MS, NowMs

SID_COOLDOWN_MS = 10_000  # as the table has it


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
    questions: int = 0

    def add_proxy(self, proxy: WaitingProxy) -> None:
        self.proxies = {key: each for key, each in self.proxies.items() if each.sid != proxy.sid}
        self.proxies[proxy.poll_id] = proxy

    def remove_proxy(self, proxy: WaitingProxy) -> None:
        self.proxies.pop(proxy.poll_id, None)

    def read_waiting(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = True
    ) -> Sequence[WaitingProxy]:
        self.questions += 1
        return [proxy for proxy in list(self.proxies.values()) if proxy.pool is pool and proxy.waits_until_ms > now_ms]

    def read_profiles(self, pool: Pool, *, now_ms: int, shards: int) -> Sequence[Profile]:
        self.questions += 1
        here = [proxy for proxy in self.proxies.values() if proxy.pool is pool and proxy.waits_until_ms > now_ms]
        return [proxy.profile for proxy in here]


@dataclass
class FakeWaitingOffers:
    """Offers that wait, in a dict; its lock stands for the conditional delete."""

    offers: dict[tuple[int, str], OpenOffer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    expired_ms: dict[str, int] = field(default_factory=dict)  # when other items expired, one on each page
    failing: set[str] = field(default_factory=set)  # other items that can't be deleted

    def add(self, offers: Sequence[OpenOffer]) -> None:
        for offer in offers:
            self.offers[_waiting_key(offer)] = offer

    def read_oldest(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = False
    ) -> Sequence[OpenOffer]:
        with self.lock:
            waiting = [offer for _, offer in sorted(self.offers.items()) if offer.waits_until_ms > now_ms]
        for first in (Pool.UNRESTRICTED, Pool.MODERATE, Pool.RESTRICTED):
            found = [each for each in waiting if list_pools_for_client(each.record.nat)[0] is first]
            if found and pool in list_pools_for_client(found[0].record.nat):
                return found[:limit]
        return []

    def take(self, offer: OpenOffer) -> bool:
        with self.lock:
            return self.offers.pop(_waiting_key(offer), None) is not None

    def list_untaken(self, *, until_ms: int, shards: int) -> Iterator[Mapping[tuple[str, int], Mapping[str, Any]]]:
        yield {(client_id, at_ms): {"key": (at_ms, client_id)} for at_ms, client_id in self.offers if at_ms < until_ms}

    def delete(self, keys: Sequence[Mapping[str, Any]]) -> None:
        for item in keys:
            self.offers.pop(item["key"], None)

    def read_expired(self, now_ms: int) -> Iterator[Sequence[Any]]:
        yield from [[name] for name, at_ms in self.expired_ms.items() if at_ms < now_ms]

    def delete_expired(self, key: Any, *, now_ms: int) -> bool:
        if key in self.failing:
            raise CallFailed("DeleteItem", "Throttling", "slow down")
        return self.expired_ms.pop(key, now_ms) < now_ms


def _waiting_key(offer: OpenOffer) -> tuple[int, str]:
    return offer.record.sent_at_ms, offer.record.client_id


@dataclass
class FakeOfferStore:
    """Offers in a dict; its lock stands for the conditional writes."""

    offers: dict[tuple[str, int], OfferRecord] = field(default_factory=dict)
    polls: dict[str, tuple[str, OpenOffer | None, WaitingProxy]] = field(default_factory=dict)  # by Sid
    waited: set[tuple[str, int]] = field(default_factory=set)
    answered_by: dict[tuple[str, int], str] = field(default_factory=dict)
    ended: dict[tuple[str, int], tuple[End, int]] = field(default_factory=dict)  # what the stream tells
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, offer: OfferRecord) -> bool:
        with self.lock:
            return self.offers.setdefault(offer.key, offer).token == offer.token

    def read(self, offer: OfferRecord, *, consistent: bool) -> OfferRecord | None:
        return self.offers.get(offer.key)

    def match(self, offer: OpenOffer, proxy: WaitingProxy, *, now_ms: int, has_waited: bool = False) -> bool:
        with self.lock:
            if not self._is_free(proxy, over_ms=now_ms - SID_COOLDOWN_MS):
                return self.polls[proxy.sid][:2] == (proxy.poll_id, offer)
            self.polls[proxy.sid] = proxy.poll_id, offer, proxy
            if has_waited:
                self.waited.add(offer.record.key)
            return True

    def close_poll(self, proxy: WaitingProxy) -> bool:
        with self.lock:
            if self._is_free(proxy, over_ms=proxy.polled_at_ms):
                self.polls[proxy.sid] = proxy.poll_id, None, proxy
            poll_id, offer, _ = self.polls[proxy.sid]
            return poll_id != proxy.poll_id or offer is None

    def _is_free(self, proxy: WaitingProxy, *, over_ms: int) -> bool:
        poll_id, offer, _ = self.polls.get(proxy.sid, ("", None, proxy))
        return poll_id != proxy.poll_id and (offer is None or offer.answers_until_ms < over_ms)

    def answer(self, sid: str, *, token: str, now_ms: int, match: Match | None = None) -> Match | None:
        if match is None or match.answers_until_ms <= now_ms:
            _, offer, proxy = self.polls.get(sid, ("", None, None))
            if offer is None or proxy is None or offer.answers_until_ms <= now_ms:
                return None
            has_waited = offer.record.key in self.waited
            match = Match.parse(offer.for_answer, proxy.profile, has_waited=has_waited)
        with self.lock:
            key = match.record.key
            record = self.offers[key]
            if record.end is not None and self.answered_by.get(key) != token:
                return None
            self.answered_by[key] = token
            self.offers[key] = replace(record, end=End.OFFER_MATCHED)
            self.ended.setdefault(key, (End.OFFER_MATCHED, now_ms))
        return replace(match, record=self.offers[key])

    def end(self, offer: OfferRecord, end: End, *, now_ms: int) -> bool:
        with self.lock:
            record = self.offers.get(offer.key)
            if record is None or record.end is not None:
                return False
            self.offers[offer.key], self.ended[offer.key] = replace(record, end=end), (end, now_ms)
            return True

    def read_sent_before(self, until_ms: int) -> Iterator[Sequence[OfferRecord]]:
        yield sorted(
            (offer for offer in self.offers.values() if offer.sent_at_ms < until_ms),
            key=lambda offer: offer.sent_at_ms,
        )

    def delete(self, offers: Sequence[OfferRecord]) -> None:
        for offer in offers:
            del self.offers[offer.key]


@dataclass
class FakePaceStore:
    """Counts and cooldowns in dicts. `failing` is why neither can be had."""

    minutes: dict[int, Counts] = field(default_factory=dict)
    hours: dict[int, Counts] = field(default_factory=dict)
    cooldowns: dict[str, int] = field(default_factory=dict)
    failing: CallFailed | None = None

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        self._check()
        for counted, place, more in (
            (self.minutes, now_ms // MINUTE_MS, minute),
            (self.hours, now_ms // HOUR_MS, hour),
        ):
            before = counted.get(place, Counts())
            numbers = Counter(before.numbers)
            numbers.update(more.numbers)
            counted[place] = Counts(numbers, before.groups | more.groups)

    def read_recent_counts(self, *, now_ms: int) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        self._check()
        return dict(self.minutes), dict(self.hours)

    def has_cooldown(self, address: str, *, now_ms: int) -> bool:
        self._check()
        return address in self.cooldowns

    def start_cooldown(
        self, address: str, next_ms: int, *, now_ms: int, after_ms: int | None = None, is_held: bool = False
    ) -> int | None:
        self._check()
        standing = self.cooldowns.get(address, 0)
        if standing != next_ms and (standing > now_ms if after_ms is None else standing != after_ms):
            return standing
        self.cooldowns[address] = next_ms
        return None

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing


@dataclass
class FakeMailboxStore:
    """Notes in a dict."""

    notes: dict[str, int] = field(default_factory=dict)

    def record(self, name: str, *, created_at_ms: int) -> None:
        self.notes[name] = created_at_ms

    def read_created_before(self, until_ms: int) -> Iterator[Sequence[tuple[str, int]]]:
        yield sorted(((name, at) for name, at in self.notes.items() if at < until_ms), key=lambda note: note[1])

    def delete(self, mailboxes: Sequence[tuple[str, int]]) -> None:
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
    delayed: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))  # seconds and body
    arrivals: list[str] = field(default_factory=list)
    appears_after_ms: int = 0
    appears_at_ms: dict[str, int] = field(default_factory=dict)

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        if url(name) not in self.made:
            self.appears_at_ms[url(name)] = self.clock.ms + self.appears_after_ms
        self.made.add(url(name))
        return url(name)

    def url(self, name: str) -> str:
        return url(name)

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        self._check(url)
        if delay_s:
            self.delayed[url].append((delay_s, body))
        else:
            self.queues[url].append(body)

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
    """Counts in dicts. `failing` is why nothing can be counted."""

    counts: statistics.Counts = field(default_factory=Counter)
    days: dict[str, statistics.Counts] = field(default_factory=lambda: defaultdict(Counter))
    marks: set[tuple[str, str, str]] = field(default_factory=set)
    failing: str = ""
    reads: int = 0

    def add(self, tallies: Sequence[Tally]) -> None:
        if self.failing:
            raise CallFailed("UpdateItem", "Throttled", self.failing)
        for tally in tallies:
            self.counts.update(tally.counts)
            self.days[tally.day].update(tally.counts)
            for address, (what, count) in itertools.product(tally.addresses, tally.marks.items()):
                if (tally.day, address, what) not in self.marks:
                    self.marks.add((tally.day, address, what))
                    self.days[tally.day][count] += 1
                    if statistics.FAMILIES[count.split(statistics.SEPARATOR)[0]].meaning:
                        self.counts[count] += 1

    def read_totals(self) -> statistics.Counts:
        self.reads += 1
        return Counter(self.counts)

    def read_day(self, day: str) -> statistics.Counts:
        self.reads += 1
        return Counter(self.days.get(day, Counter()))


@dataclass
class Meeting:
    """What a site's functions share, on one clock, and matchmakers of it. Nobody sleeps but the clock goes on."""

    clock: Clock = field(default_factory=Clock)
    pools: FakePools = field(default_factory=FakePools)
    offers: FakeOfferStore = field(default_factory=FakeOfferStore)
    waiting: FakeWaitingOffers = field(default_factory=FakeWaitingOffers)
    pace: FakePaceStore = field(default_factory=FakePaceStore)
    queues: FakeQueues = field(default_factory=FakeQueues)
    drawn: Callable[[], float] = lambda: 0.5
    executor: Executor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def __post_init__(self) -> None:
        self.queues.clock = self.clock
        self.pacing = self.new_pacing()
        self.recorder = make_recorder(self.clock)
        ids = itertools.count()
        self.new_id = lambda: f"id{next(ids)}"

    def sleep(self, seconds: float) -> None:
        self.clock.ms += round(1000 * seconds)

    def new_pacing(self) -> Pacing:
        """As another environment has it."""
        store: Any = self.pace
        return Pacing(store=store, now_ms=self.clock, log=lambda _: None)

    def dependencies(self) -> RendezvousDependencies:
        """What production's shells are given, with the fakes in place of what asks AWS."""
        fakes: Any = self
        return RendezvousDependencies(
            offers=fakes.offers,
            pools=fakes.pools,
            waiting=fakes.waiting,
            queues=fakes.queues,
            pacing=self.pacing,
            recorder=self.recorder,
            executor=self.executor,
            now_ms=self.clock,
            sleep=self.sleep,
            new_id=self.new_id,
            random=self.drawn,
        )

    def matchmaker(self, offers_due: int = 1) -> Matchmaker:
        return Matchmaker(self.dependencies(), offers_due)


def make_recorder(now_ms: NowMs) -> EventRecorder:
    """Every address is German, and its hash says what it is of."""
    ids = (f"event{number}" for number in itertools.count())
    return EventRecorder(
        look_up_country=lambda address: "DE" if address else "??",
        hash_address=lambda address: f"hash of {address}" if address else None,
        trace=lambda: "Root=1-0-0",
        now_ms=now_ms,
        new_id=lambda: next(ids),
    )


def url(name: str) -> str:
    return f"https://sqs.test/000000000000/{name}"
