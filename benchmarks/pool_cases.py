"""Small sites in virtual time: what a few proxies must do for a few clients, whoever else polls."""

from dataclasses import dataclass

from benchmarks.pool_population import Manner, Outcome, Population, Run, Site
from sluice.rendezvous.protocol.pace import NEXT_POLL_MS
from sluice.times import HOUR_MS, MINUTE_MS

STAYS_MS = 1e12  # nobody's session ends
AT_ONCE_MS = 1_000
SITE = Site(environments=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Volunteers, of whom `hostile` come `haste` times as often as they are told, and the offers that come at once.

    With `every_ms` offers come one by one instead, `offers` of them.
    """

    volunteers: int
    offers: int
    hostile: int = 0
    haste: float = 10.0
    every_ms: int = 0
    serves_ms: float = 10.0 * MINUTE_MS
    after_ms: int = 15 * MINUTE_MS
    spread_ms: int = NEXT_POLL_MS


# With the least part of offers that has to be matched, to honest proxies.
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
# The same when a day's allowance for holding is spent: what is held then is what the day allows, `held_min`.
DAY_LATER = {"ten_at_once": 26 * HOUR_MS, "hundred_at_once": 26 * HOUR_MS}


def served(case: Case, *, seed: int, after_ms: int | None = None) -> Outcome:
    """Play a case on a site that nobody has polled before; its outcome."""
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
    """Say which part of all offers went to a proxy that answers."""
    return (outcome.matched.total() - outcome.matched[Manner.HOSTILE]) / outcome.offers
