"""A population of volunteers and a site's rendezvous, in virtual time: who polls when, and who is given an offer.

Polls are decided by production's own `Pacing`, `Pace`, `Turn`, `may_take_offer` and `in_order`, one `Pacing` for each
execution environment over a table in memory. What is written out here is the order in which `Volunteers` and
`Matchmaker` ask them. Calls to AWS take no time here.
"""

import ipaddress
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from sluice.aws.rendezvous.pace import KEPT_S
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.addresses import KEY_BYTES, hash_address
from sluice.rendezvous.protocol.matching import (
    HOLD_MS,
    PATIENCE_MS,
    Nat,
    Pool,
    Profile,
    WaitingProxy,
    list_pools_for_client,
    rank_proxies,
)
from sluice.rendezvous.protocol.pace import (
    COOLDOWN,
    NEXT_POLL_MS,
    Counts,
    may_take_offer,
)
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

MIDNIGHT_MS = 20_000 * DAY_MS  # of some day
ADDRESS_KEY = bytes(KEY_BYTES)
OLDER_EVERY_MS = 5_000
# Of those polls of an older one that come before its turn, most are counted and not played, where its turn is far off.
OLDER_PLAYED = 10  # of a turn, at least
ARRIVES_MS = 50  # from an offer's send to its broker
TRIED_AT_ONCE = 11  # candidates that a broker reads for one offer
PEAK = 1.6  # times the mean, in the afternoon
PEAK_HOUR = 16.0
BURST_FACTOR, BURST_MS, BURSTS_A_DAY = 3.0, MINUTE_MS, 24


class Manner(StrEnum):
    """How a volunteer polls."""

    OBEYING = "obeying"
    OLDER = "older"  # every five seconds, whatever it is told
    HOSTILE = "hostile"  # many times as often as it is told, and never answers
    ROTATING = "rotating"  # at a steady rate, each time from another address of its network, and never answers


class Step(StrEnum):
    """What a site pays for, but for what is counted by its table."""

    HELD_IDLE = "poll held, idle"
    HELD_MATCHED = "poll held, matched"
    DEFERRED = "poll not held"
    EARLY = "poll before its turn"
    TAKEN = "poll that took a waiting offer"
    OFFER_MATCHED = "offer given to a held poll"
    OFFER_WAITED = "offer that waited"
    OFFER_LEFT = "offer that nobody took"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Who volunteers: shares of all; means of exponential times. The first polls come in `spread_ms`.

    Hostile ones come `haste` times as often as they are told. Besides `volunteers` there are `rotating` machines, which
    poll `rotating_polls_per_s` times a second, each from addresses whose first `rotating_prefix` bits are the same.
    """

    volunteers: int
    unrestricted: float = 0.25
    older: float = 0.1
    hostile: float = 0.0
    haste: float = 10.0
    session_ms: float = 4 * HOUR_MS
    serves_ms: float = 10 * MINUTE_MS
    spread_ms: int = NEXT_POLL_MS
    rotating: int = 0
    rotating_polls_per_s: float = 10.0
    rotating_prefix: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many offers a day come, from whom. `peak` is what the busiest hour has of the mean; `bursts` come a day."""

    offers_a_day: float
    unrestricted: float = 0.3
    peak: float = PEAK
    bursts: int = BURSTS_A_DAY
    burst_factor: float = BURST_FACTOR
    burst_ms: int = BURST_MS

    def rate(self, at_ms: int) -> float:
        """Give the offers a second outside bursts, with which they are as many a day as is said."""
        hour = (at_ms % DAY_MS) / HOUR_MS
        apart = self.offers_a_day / (1 + self.bursts * self.burst_ms / DAY_MS * (self.burst_factor - 1))
        return apart / 86_400 * (1 + (self.peak - 1) * math.cos((hour - PEAK_HOUR) / 24 * 2 * math.pi))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a site is told of holding, and how many environments it has that hold no poll."""

    held_min: int = 1
    held_max: int = 200
    environments: int = 8
    brokers: int = 2


@dataclass(slots=True)
class MemoryPaceStore:
    """Keeps `PaceStore`'s promises in memory, and counts what it was asked."""

    calls: Counter[str] = field(default_factory=Counter)
    minutes: dict[int, Counts] = field(default_factory=dict)
    hours: dict[int, Counts] = field(default_factory=dict)
    cooldowns: dict[str, int] = field(default_factory=dict)
    known_until_ms: dict[str, int] = field(default_factory=dict)

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        """Add to the counts of this minute and of this hour."""
        for counts, kept, place in (
            (minute, self.minutes, now_ms // MINUTE_MS),
            (hour, self.hours, now_ms // HOUR_MS),
        ):
            if counts.numbers or counts.groups:
                self.calls["add"] += 1
                before = kept.get(place, Counts())
                kept[place] = Counts(Counter(before.numbers) + Counter(counts.numbers), before.groups | counts.groups)
        for kept, until in ((self.minutes, now_ms // MINUTE_MS - 10), (self.hours, now_ms // HOUR_MS - 26)):
            for place in [each for each in kept if each < until]:
                del kept[place]

    def read_recent_counts(self, *, now_ms: int) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:  # noqa: ARG002 - the port's
        """Read the counts of the last minutes and of the last day's hours."""
        self.calls["lately"] += 1
        return dict(self.minutes), dict(self.hours)

    def has_cooldown(self, address: str, *, now_ms: int) -> bool:
        """Return whether the address has a cooldown, or is still known for one."""
        self.calls["has_cooldown"] += 1
        return self.known_until_ms.get(address, 0) > now_ms

    def start_cooldown(
        self, address: str, next_ms: int, *, now_ms: int, after_ms: int | None = None, is_held: bool = False
    ) -> int | None:
        """Start an address's cooldown; return the end of another one that still holds."""
        self.calls["start_cooldown"] += 1
        standing = self.cooldowns.get(address, 0)
        if standing != next_ms and (standing > now_ms if after_ms is None else standing != after_ms):
            return standing
        self.cooldowns[address], self.known_until_ms[address] = next_ms, next_ms + (0 if is_held else 1000 * KEPT_S)
        return None


@dataclass(slots=True, eq=False)
class Volunteer:
    """One of the population. `address` is of this session."""

    pool: Pool
    manner: Manner
    address: str | None
    leaves_at_ms: float
    arrives_anew: bool = False


@dataclass(slots=True, eq=False)
class Held:
    """A poll that is held, by an environment; `is_over` when it got an offer."""

    volunteer: Volunteer
    proxy: WaitingProxy
    environment: Pacing
    interval_ms: int
    is_over: bool = False


@dataclass(slots=True, eq=False)
class Waiting:
    """An offer that waits."""

    sent_at_ms: int
    waits_until_ms: int
    is_taken: bool = False


@dataclass(slots=True)
class Outcome:
    """What a run counted, from `since_ms` on. `held_all_denied` is what a broker that holds every poll would deny."""

    offers: int = 0
    denied: int = 0
    denied_in_bursts: int = 0
    held_all_denied: float = 0.0
    matched: Counter[Manner] = field(default_factory=Counter)
    steps: dict[tuple[Step, Pool, Manner], float] = field(default_factory=lambda: defaultdict(float))
    held_ms: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    waits_ms: list[int] = field(default_factory=list)
    polls_by_minute: Counter[tuple[Pool, int]] = field(default_factory=Counter)


class Run:
    """One run of a population and its site in virtual time, from `begun_ms` after midnight on.

    What happens in the first `since_ms` isn't counted.
    """

    def __init__(
        self,
        population: Population,
        demand: Demand | None,
        site: Site | None = None,
        *,
        seed: int,
        begun_ms: int = 0,
        since_ms: int = 0,
    ) -> None:
        self.population, self.demand, self.site = population, demand, site or Site()
        self.chance = Random(seed)
        self.now_ms = MIDNIGHT_MS + begun_ms
        self.since_ms = self.now_ms + since_ms
        self.store = MemoryPaceStore()
        self.outcome = Outcome()
        self.environments = 0
        self.idle = [self._pacing() for _ in range(self.site.environments)]
        self.brokers = [self._pacing() for _ in range(self.site.brokers)]
        self.held: dict[Pool, dict[str, Held]] = {pool: {} for pool in Pool}
        self.waiting: dict[Pool, deque[Waiting]] = {pool: deque() for pool in Pool}
        self.available: Counter[Pool] = Counter()
        self.burst_until_ms = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._drawn = 0
        for number in range(population.volunteers):
            self._join(number)
        for _ in range(population.rotating):
            network = self.chance.getrandbits(population.rotating_prefix) << (128 - population.rotating_prefix)
            self._rotate(network, Volunteer(Pool.UNRESTRICTED, Manner.ROTATING, None, math.inf))
        if demand is not None:
            self._next_offer()
            self._next_burst()

    def until(self, for_ms: int) -> Outcome:
        """Go on for so long; what was counted up to then."""
        until_ms = self.now_ms + for_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, act, given = heappop(self._events)
            act(*given)
        self.now_ms = until_ms
        return self.outcome

    def at(self, at_ms: float, act: Callable[..., None], *given: object) -> None:
        """Have something happen then."""
        self._drawn += 1
        heappush(self._events, (int(at_ms), self._drawn, act, given))

    def offer(self, nat: Nat = Nat.UNKNOWN) -> None:
        """Have a client send an offer now."""
        self.at(self.now_ms + ARRIVES_MS, self._serve, nat, self.now_ms)

    @property
    def counts(self) -> bool:
        """Whether what happens now is counted."""
        return self.now_ms >= self.since_ms

    def _pacing(self) -> Pacing:
        self.environments += 1
        store: Any = self.store  # it counts as the table does
        return Pacing(store=store, now_ms=lambda: self.now_ms, log=_never)

    def _join(self, number: int) -> None:
        population, place = self.population, number / self.population.volunteers
        manner = (
            Manner.HOSTILE
            if place < population.hostile
            else Manner.OLDER
            if place < population.hostile + population.older
            else Manner.OBEYING
        )
        is_unrestricted = self.chance.random() < population.unrestricted
        pool = Pool.UNRESTRICTED if is_unrestricted else Pool.RESTRICTED
        volunteer = Volunteer(pool, manner, self._address(), self.now_ms + self._session_ms())
        self.available[pool] += 1
        self.at(self.now_ms + self.chance.random() * population.spread_ms, self._poll, volunteer)

    def _address(self) -> str | None:
        return hash_address(str(ipaddress.IPv4Address(self.chance.getrandbits(32))), ADDRESS_KEY)

    def _rotate(self, network: int, machine: Volunteer) -> None:
        host = self.chance.getrandbits(128 - self.population.rotating_prefix)
        machine.address = hash_address(str(ipaddress.IPv6Address(network + host)), ADDRESS_KEY)
        self.at(self.now_ms + 1000 / self.population.rotating_polls_per_s, self._rotate, network, machine)
        self._poll(Volunteer(machine.pool, machine.manner, machine.address, math.inf))

    def _session_ms(self) -> float:
        return self.chance.expovariate(1 / self.population.session_ms)

    def _come(self, volunteer: Volunteer, after_ms: float) -> None:
        """Have a volunteer poll again; or the next one, who comes at once, when its session is over before."""
        at_ms = self.now_ms + after_ms
        if at_ms > volunteer.leaves_at_ms:
            at_ms, volunteer.arrives_anew = max(volunteer.leaves_at_ms, self.now_ms), True
        self.at(at_ms, self._poll, volunteer)

    def _poll(self, volunteer: Volunteer) -> None:
        """As `Volunteers._match_poll`."""
        if volunteer.arrives_anew:
            volunteer.arrives_anew, volunteer.address = False, self._address()
            volunteer.leaves_at_ms = self.now_ms + self._session_ms()
        now_ms, pool = self.now_ms, volunteer.pool
        place = len(self.idle) - 1 - int(self.chance.random() * min(len(self.idle), self.site.environments))
        environment = self.idle[place]
        pace = environment.get_pace()
        interval_ms = pace.draw_next_poll_ms(pool, self.chance.random())
        compute_hold_fraction = pace.compute_hold_fraction(
            pool, on_average=self.site.held_min, at_most=self.site.held_max
        )
        is_held = self.chance.random() < compute_hold_fraction
        cooldown_ms = (HOLD_MS if is_held else 0) + round(COOLDOWN * interval_ms)
        elapsed_fraction = environment.start_cooldown(volunteer.address, cooldown_ms)
        if is_held and elapsed_fraction >= 1:
            elapsed_fraction = environment.confirm(volunteer.address, cooldown_ms, is_held=True)
        if is_held and elapsed_fraction >= 1:
            self._hold(volunteer, environment, place, interval_ms)
            return
        confirm = partial(environment.confirm, volunteer.address, cooldown_ms)
        taken = self._take(pool, elapsed_fraction=elapsed_fraction, confirm=confirm)
        if elapsed_fraction >= 1 and self.counts:
            self.outcome.polls_by_minute[pool, now_ms // MINUTE_MS] += 1
        if taken is not None:
            self._count(Step.TAKEN, volunteer)
            self._matched(volunteer, taken.sent_at_ms, environment, interval_ms)
            return
        if elapsed_fraction >= 1:
            environment.count_poll(pool, interval_ms=interval_ms)
        self._count(Step.EARLY if elapsed_fraction < 1 else Step.DEFERRED, volunteer)
        environment.flush_counts()
        self._go(volunteer, interval_ms)

    def _go(self, volunteer: Volunteer, interval_ms: int) -> None:
        """Have a volunteer go that got nothing."""
        match volunteer.manner:
            case Manner.OBEYING:
                self._come(volunteer, interval_ms)
            case Manner.ROTATING:
                pass  # its machine has others
            case Manner.HOSTILE:
                self._come(volunteer, interval_ms / self.population.haste)
            case Manner.OLDER:
                every_ms = max(interval_ms / OLDER_PLAYED, OLDER_EVERY_MS)
                self._count(Step.EARLY, volunteer, every_ms / OLDER_EVERY_MS - 1)
                self._come(volunteer, every_ms)

    def _count(self, step: Step, volunteer: Volunteer, times: float = 1) -> None:
        if self.counts:
            self.outcome.steps[step, volunteer.pool, volunteer.manner] += times

    def _matched(self, volunteer: Volunteer, sent_at_ms: int, environment: Pacing, interval_ms: int) -> None:
        """Note who was given an offer, and have it serve its client, or not."""
        environment.count_given(volunteer.pool)
        if self.counts:
            self.outcome.matched[volunteer.manner] += 1
            self.outcome.waits_ms.append(self.now_ms - sent_at_ms)
        if volunteer.manner is Manner.HOSTILE:
            self._come(volunteer, interval_ms / self.population.haste)
        if volunteer.manner in {Manner.HOSTILE, Manner.ROTATING}:
            return
        self._count(Step.ANSWER, volunteer)
        environment.count_given(volunteer.pool, is_answered=True)
        environment.flush_counts()
        self.available[volunteer.pool] -= 1
        serves_ms = self.chance.expovariate(1 / self.population.serves_ms)
        self.at(self.now_ms + max(serves_ms, interval_ms), self._served, volunteer)

    def _served(self, volunteer: Volunteer) -> None:
        self.available[volunteer.pool] += 1
        self._poll(volunteer)

    def _hold(self, volunteer: Volunteer, environment: Pacing, place: int, interval_ms: int) -> None:
        """As `Volunteers._hold`: it stands in its pool, looks for offers that wait, and stays."""
        taken = self._take(volunteer.pool, elapsed_fraction=1.0)
        if taken is not None:
            self._count(Step.HELD_MATCHED, volunteer)
            environment.count_hold(0)
            self._matched(volunteer, taken.sent_at_ms, environment, interval_ms)
            return
        self.idle[place] = self.idle[-1]
        self.idle.pop()
        if not self.idle:
            self.idle.append(self._pacing())
        proxy = WaitingProxy(
            poll_id=str(self._drawn),
            sid="",
            pool=volunteer.pool,
            clients=0,
            polled_at_ms=self.now_ms,
            profile=Profile(address=volunteer.address),
        )
        held = Held(volunteer, proxy, environment, interval_ms)
        self.held[volunteer.pool][proxy.poll_id] = held
        self.at(self.now_ms + HOLD_MS, self._let_go, held)

    def _let_go(self, held: Held) -> None:
        if held.is_over:
            return
        volunteer = held.volunteer
        self._end(held)
        held.environment.count_poll(volunteer.pool, interval_ms=held.interval_ms + HOLD_MS)
        self._count(Step.HELD_IDLE, volunteer)
        held.environment.flush_counts()
        self._go(volunteer, held.interval_ms)

    def _end(self, held: Held) -> None:
        del self.held[held.volunteer.pool][held.proxy.poll_id]
        held.is_over = True
        held_ms = self.now_ms - held.proxy.polled_at_ms
        held.environment.count_hold(held_ms)
        self.idle.append(held.environment)
        if self.counts:
            self.outcome.held_ms += held_ms

    def _take(
        self, pool: Pool, *, elapsed_fraction: float, confirm: Callable[..., float] = lambda **_: 1.0
    ) -> Waiting | None:
        """As `Volunteers._take` and `WaitingOffers.read_oldest`: those that only this pool may serve come first."""
        for fitting in (Pool.UNRESTRICTED, Pool.RESTRICTED) if pool is Pool.UNRESTRICTED else (Pool.RESTRICTED,):
            waiting = self.waiting[fitting]
            while waiting and (waiting[0].is_taken or waiting[0].waits_until_ms <= self.now_ms):
                waiting.popleft()
            if not waiting:
                continue
            oldest = waiting[0]
            waited = (self.now_ms - oldest.sent_at_ms) / (oldest.waits_until_ms - oldest.sent_at_ms)
            if may_take_offer(elapsed_fraction, waited) and may_take_offer(confirm(waited=waited), waited):
                oldest.is_taken = True
                return waiting.popleft()
            return None
        return None

    def _next_offer(self) -> None:
        assert self.demand is not None
        most = self.demand.offers_a_day / 86_400 * self.demand.peak * self.demand.burst_factor
        self.at(self.now_ms + 1000 * self.chance.expovariate(most), self._maybe_offer, most)

    def _maybe_offer(self, most: float) -> None:
        assert self.demand is not None
        rate = self.demand.rate(self.now_ms) * (self.demand.burst_factor if self.now_ms < self.burst_until_ms else 1)
        if self.chance.random() < rate / most:
            self.offer(Nat.UNRESTRICTED if self.chance.random() < self.demand.unrestricted else Nat.UNKNOWN)
        self._next_offer()

    def _next_burst(self) -> None:
        assert self.demand is not None
        if self.demand.bursts:
            self.at(self.now_ms + self.chance.expovariate(self.demand.bursts / DAY_MS), self._burst)

    def _burst(self) -> None:
        self.burst()
        self._next_burst()

    def burst(self) -> None:
        """Have a burst begin now."""
        assert self.demand is not None
        self.burst_until_ms = self.now_ms + self.demand.burst_ms

    def _serve(self, nat: Nat, sent_at_ms: int) -> None:
        """As `Broker._serve_message` and `Matchmaker`: a proxy whose poll is held, or a place among those that wait."""
        broker = self.brokers[int(self.chance.random() * len(self.brokers))]
        broker.count_offer(list_pools_for_client(nat)[0])
        broker.get_pace()
        broker.flush_counts()
        if self.counts:
            self.outcome.offers += 1
            able = sum(self.available[pool] for pool in list_pools_for_client(nat))
            self.outcome.held_all_denied += (NEXT_POLL_MS / (NEXT_POLL_MS + HOLD_MS)) ** able
        for pool in list_pools_for_client(nat):
            held = list(self.held[pool].values())
            if held:
                some = [each.proxy for each in self.chance.sample(held, min(len(held), TRIED_AT_ONCE))]
                first = rank_proxies(some, ties=[self.chance.random() for _ in some])[0]
                given = self.held[pool][first.poll_id]
                self._end(given)
                self._count(Step.HELD_MATCHED, given.volunteer)
                self._count(Step.OFFER_MATCHED, given.volunteer)
                self._matched(given.volunteer, sent_at_ms, given.environment, given.interval_ms)
                return
        until_ms = sent_at_ms + PATIENCE_MS
        waits = Waiting(sent_at_ms, until_ms)
        self.waiting[Pool.RESTRICTED if nat is Nat.UNRESTRICTED else Pool.UNRESTRICTED].append(waits)
        self.at(until_ms, self._left, waits)

    def _left(self, waits: Waiting) -> None:
        if self.counts:
            self.outcome.steps[Step.OFFER_WAITED, Pool.UNRESTRICTED, Manner.OBEYING] += 1
            if not waits.is_taken:
                self.outcome.denied += 1
                self.outcome.denied_in_bursts += self.now_ms < self.burst_until_ms + MINUTE_MS
                self.outcome.steps[Step.OFFER_LEFT, Pool.UNRESTRICTED, Manner.OBEYING] += 1


def _never(error: Exception) -> None:
    raise error
