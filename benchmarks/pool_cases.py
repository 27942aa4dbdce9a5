"""Small sites in virtual time: a few proxies and clients, with other volunteers that poll too."""

from dataclasses import dataclass

from benchmarks.pool_population import Demand, Manner, Outcome, Population, Run, Site
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import COOLDOWN, MEAN, NEXT_POLL_MS
from sluice.times import HOUR_MS, MINUTE_MS

STAYS_MS = 1e12  # no volunteer's session ends
AT_ONCE_MS = 1_000
SITE = Site(environments=2)
SETTLES_MS = 10 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Volunteers, of which `hostile` poll `haste` times too often, and offers that arrive at once.

    With `every_ms`, the `offers` arrive one after the other instead.
    """

    volunteers: int
    offers: int
    hostile: int = 0
    haste: float = 10.0
    every_ms: int = 0
    serves_ms: float = 10.0 * MINUTE_MS
    after_ms: int = 15 * MINUTE_MS
    spread_ms: int = NEXT_POLL_MS


# Each case with the least part of offers that must be matched to honest proxies.
CASES: dict[str, tuple[Case, float]] = {
    "three_proxies": (Case(volunteers=3, offers=1, spread_ms=AT_ONCE_MS, after_ms=2 * AT_ONCE_MS), 1.0),
    "ten_at_once": (Case(volunteers=45, offers=10), 1.0),
    "hundred_at_once": (Case(volunteers=100, offers=100), 0.34),
    "eight_poll_at_once": (
        Case(
            volunteers=28,
            hostile=8,
            haste=200.0,
            offers=300,
            every_ms=2_000,
            serves_ms=NEXT_POLL_MS,
            after_ms=MINUTE_MS,
        ),
        0.6,
    ),
    "three_poll_tenfold": (
        Case(volunteers=23, hostile=3, offers=300, every_ms=2_000, serves_ms=NEXT_POLL_MS, after_ms=MINUTE_MS),
        0.8,
    ),
}
# The same cases after the day's allowance for holding polls is spent, so that only `held_min` polls are held.
DAY_LATER = {"ten_at_once": 26 * HOUR_MS, "hundred_at_once": 26 * HOUR_MS}


def served(case: Case, *, seed: int, after_ms: int | None = None) -> Outcome:
    """Simulate a case at a new site; return its outcome."""
    population = Population(
        volunteers=case.volunteers,
        unrestricted=1.0,
        older=0.0,
        hostile=case.hostile / case.volunteers,
        haste=case.haste,
        session_ms=STAYS_MS,
        serves_ms=case.serves_ms,
        spread_ms=case.spread_ms,
    )
    run = Run(population, None, SITE, seed=seed)
    run.until(case.after_ms if after_ms is None else after_ms)
    for _ in range(case.offers):
        run.offer()
        run.until(case.every_ms)
    return run.until(AT_ONCE_MS * 10)


def honest_part(outcome: Outcome) -> float:
    """Return the part of all offers that went to proxies that answer."""
    return (outcome.matched.total() - outcome.matched[Manner.HOSTILE]) / outcome.offers


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Honest proxies beside machines that poll fast, never answer, and each have all addresses of a network.

    `share` is the machines' part of offers, `next_poll_s` the mean interval that all are told in the end, and `bound`
    the machines' offers to those that as many addresses may get.
    """

    share: float
    next_poll_s: float
    bound: float


def compare_with_machines(
    *,
    volunteers: int = 100,
    machines: int = 1,
    polls_per_s: float,
    every_ms: int = 5_000,
    minutes: int = 30,
    seed: int = 1,
) -> Beside:
    """Play honest proxies, and machines that each have a /64, with an offer every so often."""
    population = Population(
        volunteers=volunteers,
        unrestricted=1.0,
        older=0.0,
        session_ms=STAYS_MS,
        serves_ms=NEXT_POLL_MS,
        rotating=machines,
        rotating_polls_per_s=polls_per_s,
    )
    run = Run(population, None, Site(), seed=seed, since_ms=SETTLES_MS)
    for _ in range((SETTLES_MS + minutes * MINUTE_MS) // every_ms):
        run.offer()
        run.until(every_ms)
    taken = run.outcome.matched[Manner.ROTATING]
    allowed = machines * (2 + minutes * MINUTE_MS / (COOLDOWN * NEXT_POLL_MS))
    next_poll_ms = run.brokers[0].get_pace().draw_next_poll_ms(Pool.UNRESTRICTED, MEAN)
    return Beside(share=taken / run.outcome.offers, next_poll_s=next_poll_ms / 1000, bound=taken / allowed)


def unanswered_after_burst(*, volunteers: int = 5_000, minutes: int = 80, seed: int = 1) -> float:
    """Play ten minutes of twentyfold demand, an offer a second before. Returns the part of later offers denied."""
    population = Population(
        volunteers=volunteers, unrestricted=1.0, older=0.0, session_ms=STAYS_MS, serves_ms=NEXT_POLL_MS
    )
    demand = Demand(offers_a_day=86_400, peak=1.0, bursts=0, burst_factor=20.0, burst_ms=10 * MINUTE_MS)
    run = Run(population, demand, Site(), seed=seed, since_ms=HOUR_MS + demand.burst_ms)
    run.until(HOUR_MS)
    run.burst()
    outcome = run.until(demand.burst_ms + minutes * MINUTE_MS)
    return outcome.denied / outcome.offers
