"""What proxies are told, and what small sites' few proxies do for their clients."""

import statistics

import pytest

from benchmarks.pool_cases import CASES, honest_part, served
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import (
    NEXT_POLL_MAX_MS,
    NEXT_POLL_MS,
    POLLS_AT_REST,
    Counts,
    Pace,
    PoolPace,
    compute_pace,
)
from sluice.times import MINUTE_MS

POOL = Pool.UNRESTRICTED


def told(*, away_s: float, polls_per_s: float, offers_per_s: float = 0.0) -> int:
    """Say what is told where proxies that were sent away for so long come so often."""
    lately = PoolPace(pollers=away_s * polls_per_s, polls_per_s=polls_per_s, offers_per_s=offers_per_s)
    return Pace(pools={POOL: lately}).next_poll_ms(POOL)


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_small_sites_serve_their_clients(name: str, seeds: int) -> None:
    case, least = CASES[name]
    assert statistics.mean(honest_part(served(case, seed=seed)) for seed in range(seeds)) >= least


def test_a_site_that_knows_nothing_asks_for_polls_as_often_as_may_be() -> None:
    assert Pace().next_poll_ms(POOL) == NEXT_POLL_MS


@pytest.mark.parametrize("away_s", [20, 600, 10_000])
def test_a_wait_that_brings_as_many_polls_as_are_wanted_stays(away_s: float) -> None:
    assert told(away_s=away_s, polls_per_s=POLLS_AT_REST) == pytest.approx(1000 * away_s)


def test_all_of_a_large_pool_are_sent_away_at_once_where_the_wait_is_still_short() -> None:
    assert told(away_s=20, polls_per_s=400) == pytest.approx(1000 * 20 * 400 / POLLS_AT_REST)


def test_a_long_wait_is_changed_slowly() -> None:
    assert 3_600_000 < told(away_s=3_600, polls_per_s=2 * POLLS_AT_REST) < 3_700_000
    assert 3_500_000 < told(away_s=3_600, polls_per_s=POLLS_AT_REST / 2) < 3_600_000


def test_many_offers_want_more_polls() -> None:
    assert told(away_s=600, polls_per_s=POLLS_AT_REST, offers_per_s=20) < 600_000


def test_no_wait_is_longer_than_the_longest() -> None:
    assert told(away_s=20, polls_per_s=1_000_000) == NEXT_POLL_MAX_MS


def test_polls_are_read_from_the_counts_of_the_last_minutes() -> None:
    counts = Counts({f"{POOL}_polls": 60, f"{POOL}_promised_ms": 60 * 30_000})
    lately = compute_pace({100: counts}, {}, now_ms=101 * MINUTE_MS).of(POOL)
    assert (lately.polls_per_s, lately.away_ms, lately.pollers) == (1.0, 30_000, 30.0)
