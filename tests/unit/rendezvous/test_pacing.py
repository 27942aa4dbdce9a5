"""Addresses have a cooldown after each poll: each environment knows its own, and the table those of early ones."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import CallFailed
from sluice.rendezvous import pacing as under_test
from sluice.rendezvous.pacing import READ_EVERY_MS
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import CROWD, NEXT_POLL_MS, Counts, may_take_offer
from sluice.times import HOUR_MS, MINUTE_MS
from tests.fakes import Meeting

ADDRESS = "00112233445566778899aabbccddeeff"
COOLDOWN_MS = 1_000
POOL = Pool.RESTRICTED


def crowded(*, offers: int = 9) -> Meeting:
    """A site where many addresses poll, and clients send offers."""
    site = Meeting()
    site.pace.minutes[site.clock.ms // MINUTE_MS] = Counts({"restricted_offers": offers}, frozenset(range(CROWD)))
    return site


def test_an_address_has_a_cooldown_after_a_poll() -> None:
    site = crowded()
    elapsed_fraction = []
    for _ in range(3):
        elapsed_fraction.append(site.pacing.start_cooldown(ADDRESS, COOLDOWN_MS))
        site.clock.ms += COOLDOWN_MS // 2
    assert elapsed_fraction == [1, 0.5, 1]


def test_few_addresses_have_no_cooldowns_and_are_counted() -> None:
    site = Meeting()
    for number in range(CROWD):
        for _ in range(2):
            assert site.pacing.start_cooldown(f"{number:016x}", COOLDOWN_MS) == 1
    site.pacing.flush_counts()
    site.clock.ms += READ_EVERY_MS
    assert site.pacing.get_pace().groups == CROWD


def test_an_address_whose_polls_all_get_an_offer_is_counted() -> None:
    site = Meeting()
    site.pacing.start_cooldown(ADDRESS, COOLDOWN_MS)
    site.pacing.count_given(POOL)
    site.pacing.flush_counts()
    assert [len(counts.groups) for counts in site.pace.minutes.values()] == [1]


def test_the_table_confirms_one_cooldown_of_those_that_began_at_once_and_that_is_remembered() -> None:
    site = crowded()
    here, there = site.new_pacing(), site.new_pacing()
    assert [one.start_cooldown(ADDRESS, COOLDOWN_MS) for one in (here, there)] == [1, 1]
    assert there.confirm(ADDRESS, COOLDOWN_MS, is_held=True) == 1
    site.clock.ms += COOLDOWN_MS // 2
    assert here.confirm(ADDRESS, COOLDOWN_MS) == 0.5
    site.clock.ms += COOLDOWN_MS // 4
    assert here.start_cooldown(ADDRESS, COOLDOWN_MS) == 0.75


def test_an_offer_that_is_taken_early_adds_a_cooldown() -> None:
    site = crowded()
    site.pace.cooldowns[ADDRESS] = site.clock.ms
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS) == 1
    site.clock.ms += COOLDOWN_MS // 2
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS, waited=0.5) == 0.5
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS, waited=0.5) == 0
    site.clock.ms += COOLDOWN_MS
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS, waited=0.4) == 0.5
    site.clock.ms += COOLDOWN_MS // 2
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS) == 1


@given(st.lists(st.tuples(st.integers(0, COOLDOWN_MS), st.floats(0, 0.999)), max_size=60))
def test_an_address_that_came_early_gets_an_offer_a_cooldown_and_two_more_however_old_offers_are(
    polls: list[tuple[int, float]],
) -> None:
    site = crowded()
    site.pace.cooldowns[ADDRESS] = site.clock.ms
    began_ms, taken = site.clock.ms, 0
    for after_ms, waited in polls:
        site.clock.ms += after_ms
        # Cooldowns are random. One that ends as the last one does is taken for a repeated call, so there is none here.
        cooldown_ms = COOLDOWN_MS + (site.clock.ms + COOLDOWN_MS == site.pace.cooldowns[ADDRESS])
        taken += may_take_offer(site.new_pacing().confirm(ADDRESS, cooldown_ms, waited=waited), waited)
        site.pace.minutes[site.clock.ms // MINUTE_MS] = Counts({"restricted_offers": 1}, frozenset(range(CROWD)))
    assert taken <= (site.clock.ms - began_ms) / COOLDOWN_MS + 2


def test_an_address_that_takes_another_offer_at_the_same_time_is_refused_one() -> None:
    site = crowded()
    site.pacing.confirm(ADDRESS, COOLDOWN_MS, is_held=True)
    site.clock.ms += COOLDOWN_MS // 2
    start, other = site.pace.start_cooldown, site.new_pacing()

    def start_both(address: str, next_ms: int, *, after_ms: int | None = None, **given: Any) -> int | None:
        if after_ms is not None:
            site.pace.start_cooldown = start  # type: ignore[method-assign]
            assert other.confirm(ADDRESS, COOLDOWN_MS + 1, waited=0.9) > 0
        return start(address, next_ms, after_ms=after_ms, **given)

    site.pace.start_cooldown = start_both  # type: ignore[method-assign]
    assert site.pacing.confirm(ADDRESS, COOLDOWN_MS, waited=0.9) == 0


def test_an_address_gets_its_offer_though_the_table_fails() -> None:
    site = crowded()
    site.pacing.get_pace()
    site.pace.failing = CallFailed("PutItem", "Throttled", "later")
    assert [site.pacing.confirm(ADDRESS, COOLDOWN_MS, is_held=is_held) for is_held in (False, True)] == [1, 1]


def test_cooldowns_in_memory_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_COOLDOWNS", 3)
    site = crowded()
    for number in range(5):
        site.pacing.start_cooldown(str(number), COOLDOWN_MS)
    elapsed_fraction = {number: site.pacing.start_cooldown(str(number), COOLDOWN_MS) for number in (2, 3, 4)}
    assert set(elapsed_fraction.values()) == {0}
    assert site.pacing.start_cooldown("0", COOLDOWN_MS) == 1


def test_an_address_that_polls_too_early_somewhere_is_known_everywhere() -> None:
    site = crowded()
    here, there = site.new_pacing(), site.new_pacing()
    here.start_cooldown(ADDRESS, COOLDOWN_MS)
    site.clock.ms += COOLDOWN_MS // 2
    asked = site.pace.start_cooldown
    calls = list[str]()

    def start(address: str, next_ms: int, **given: Any) -> int | None:
        calls.append(address)
        return asked(address, next_ms, **given)

    site.pace.start_cooldown = start  # type: ignore[method-assign]
    for _ in range(9):
        assert here.start_cooldown(ADDRESS, COOLDOWN_MS) == 0.5
    assert calls == [ADDRESS]
    assert there.start_cooldown(ADDRESS, COOLDOWN_MS) == 1
    assert there.confirm(ADDRESS, COOLDOWN_MS) == 0.5


def test_an_address_that_never_polled_too_early_is_not_stored() -> None:
    site = crowded()
    for _ in range(3):
        assert site.pacing.start_cooldown(ADDRESS, COOLDOWN_MS) == 1
        assert site.pacing.confirm(ADDRESS, COOLDOWN_MS) == 1
        site.clock.ms += COOLDOWN_MS
    assert site.pace.cooldowns == {}


@pytest.mark.parametrize("offers", [0, 9])
def test_a_poll_that_gets_no_offer_asks_nothing_of_the_table(offers: int) -> None:
    site = crowded(offers=offers)
    for number in range(100):
        site.pacing.start_cooldown(f"{number:016x}", COOLDOWN_MS)
        site.pacing.count_poll(POOL, interval_ms=MINUTE_MS)
    assert site.pace.cooldowns == {}


def test_without_demand_the_table_confirms_nothing() -> None:
    site = crowded(offers=0)
    assert [site.pacing.confirm(ADDRESS, COOLDOWN_MS, is_held=True) for _ in range(2)] == [1, 1]
    assert site.pace.cooldowns == {}


# How far polls count


def told(site: Meeting) -> int:
    return site.new_pacing().get_pace().draw_next_poll_ms(POOL, 0.5)


def test_polls_count_only_as_far_as_offers_are_answered() -> None:
    """Proxies that never answer take nine of ten offers: only a tenth of all polls counts."""
    site = Meeting()
    minute, hour = site.clock.ms // MINUTE_MS, site.clock.ms // HOUR_MS
    polls = {f"{POOL}_polls": 3_000, f"{POOL}_promised_ms": 3_000 * NEXT_POLL_MS}
    for count, answered in ((0, 0), (99, 99), (99, 9)):
        offers = {f"{POOL}_given": count, f"{POOL}_answered": answered}
        site.pace.minutes = {minute: Counts(polls | offers)}
        site.pace.hours = {hour: Counts(offers)}
        proven = 0.1 if count > answered else 1.0
        pace = site.new_pacing().get_pace().for_pool(POOL)
        assert pace.polls_per_s == pytest.approx(proven * 1000 * 3_000 / max(site.clock.ms % MINUTE_MS, MINUTE_MS // 2))
        assert pace.interval_ms == pytest.approx(NEXT_POLL_MS)


def test_offers_are_remembered_for_hours_where_there_are_few() -> None:
    site = Meeting()
    minute, hour = site.clock.ms // MINUTE_MS, site.clock.ms // HOUR_MS
    site.pace.minutes = {minute: Counts({f"{POOL}_polls": 30_000, f"{POOL}_promised_ms": 30_000 * NEXT_POLL_MS})}
    before = told(site)
    site.pace.hours = {hour - 1: Counts({f"{POOL}_given": 999})}
    assert NEXT_POLL_MS == told(site) < before
    site.pace.hours = {hour - 2: Counts({f"{POOL}_given": 999})}
    assert told(site) == before


def test_an_offer_and_its_answer_are_counted_by_minute_and_hour() -> None:
    site = Meeting()
    for is_answered in (False, False, True):
        site.pacing.count_given(POOL, is_answered=is_answered)
    site.pacing.flush_counts()
    counted = {"restricted_given": 2, "restricted_answered": 1}
    assert [counts.numbers for counts in itertools.chain(site.pace.minutes.values(), site.pace.hours.values())] == [
        counted,
        counted,
    ]
