"""What proxies are told, and what small sites' few proxies do for their clients."""

import statistics

import pytest

from benchmarks.pool_cases import CASES, compare_with_machines, honest_part, served, unanswered_after_burst
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import (
    NEXT_POLL_MAX_MS,
    NEXT_POLL_MS,
    POLLS_WITHOUT_DEMAND,
    Counts,
    Pace,
    PoolPace,
    compute_pace,
)
from sluice.times import MINUTE_MS

POOL = Pool.UNRESTRICTED


def told(*, away_s: float, polls_per_s: float, offers_per_s: float = 0.0, draw: float = 0.5) -> int:
    """Say what is told where proxies that were sent away for so long come so often."""
    lately = PoolPace(pollers=away_s * polls_per_s, polls_per_s=polls_per_s, offers_per_s=offers_per_s)
    return Pace(pools={POOL: lately}).draw_next_poll_ms(POOL, draw)


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_small_sites_serve_their_clients(name: str, seeds: int) -> None:
    case, least = CASES[name]
    assert statistics.mean(honest_part(served(case, seed=seed)) for seed in range(seeds)) >= least


@pytest.mark.parametrize("polls_per_s", [10.0, pytest.param(100.0, marks=pytest.mark.slow)])
def test_a_machine_with_a_network_of_addresses_gets_little_more_than_one_proxy(polls_per_s: float) -> None:
    """It neither takes the others' offers, nor has them come less often."""
    beside = compare_with_machines(polls_per_s=polls_per_s, minutes=10)
    assert beside.share <= 0.15
    assert beside.next_poll_s == NEXT_POLL_MS / 1000


def test_addresses_get_as_many_offers_as_their_cooldowns_allow() -> None:
    assert compare_with_machines(volunteers=4, machines=10, polls_per_s=4.0, every_ms=200, minutes=3).bound <= 1


@pytest.mark.slow
@pytest.mark.parametrize("volunteers", [1_000, 5_000])
def test_after_a_burst_of_demand_proxies_come_without_gaps(volunteers: int) -> None:
    assert unanswered_after_burst(volunteers=volunteers, minutes=20) <= 0.02


def test_a_site_that_knows_nothing_asks_for_polls_as_often_as_may_be() -> None:
    assert Pace().draw_next_poll_ms(POOL, 0.5) == NEXT_POLL_MS


@pytest.mark.parametrize("away_s", [20, 600, 10_000])
def test_a_wait_that_brings_as_many_polls_as_are_wanted_stays(away_s: float) -> None:
    assert told(away_s=away_s, polls_per_s=POLLS_WITHOUT_DEMAND) == pytest.approx(1000 * away_s)


def test_all_of_a_large_pool_are_sent_away_at_once_where_the_wait_is_still_short() -> None:
    assert told(away_s=20, polls_per_s=400) == pytest.approx(1000 * 20 * 400 / POLLS_WITHOUT_DEMAND)


@pytest.mark.parametrize(("draw", "part"), [(0, 0.8), (0.5, 1.0), (0.9999, 1.2)])
def test_proxies_are_told_different_waits(draw: float, part: float) -> None:
    assert told(away_s=600, polls_per_s=POLLS_WITHOUT_DEMAND, draw=draw) == pytest.approx(part * 600_000, rel=0.001)


def test_where_all_are_told_to_wait_much_longer_some_come_as_soon_as_before() -> None:
    for draw, away_s in ((0, 20), (0.5, 1_600), (0.9999, 3_180)):
        assert told(away_s=20, polls_per_s=400, draw=draw) == pytest.approx(1000 * away_s, rel=0.001)


def test_a_long_wait_is_changed_slowly() -> None:
    assert 3_600_000 < told(away_s=3_600, polls_per_s=2 * POLLS_WITHOUT_DEMAND) < 3_700_000
    assert 3_500_000 < told(away_s=3_600, polls_per_s=POLLS_WITHOUT_DEMAND / 2) < 3_600_000


def test_many_offers_want_more_polls() -> None:
    assert told(away_s=600, polls_per_s=POLLS_WITHOUT_DEMAND, offers_per_s=20) < 600_000


def test_no_wait_is_longer_than_the_longest() -> None:
    assert told(away_s=20, polls_per_s=1_000_000) == NEXT_POLL_MAX_MS


def test_polls_are_read_from_the_counts_of_the_last_minutes() -> None:
    counts = Counts({f"{POOL}_polls": 60, f"{POOL}_promised_ms": 60 * 30_000})
    lately = compute_pace({100: counts}, {}, now_ms=101 * MINUTE_MS).for_pool(POOL)
    assert (lately.polls_per_s, lately.interval_ms, lately.pollers) == (1.0, 30_000, 30.0)
