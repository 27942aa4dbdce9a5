"""An environment knows of the turns that it gave and of those that others told of: who had two rests for both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous import pacing as under_test
from sluice.rendezvous.pacing import ADDRESS_DIGITS, READ_EVERY_MS, TOLD_LATE_MS, WRITTEN_EVERY_MS, AddressCooldowns
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import CROWD, NEXT_POLL_MAX_MS, Cooldown, CooldownRow, Counts
from sluice.times import MINUTE_MS
from tests.fakes import Meeting

ADDRESS = "00112233445566778899aabbccddeeff"
KNOWN_AS = ADDRESS[:ADDRESS_DIGITS]
TURN = Cooldown(0, 1_000)


def told(turn: Cooldown, *, environment: str = "there", at_ms: int = 1) -> CooldownRow:
    return CooldownRow(environment, at_ms, {KNOWN_AS: turn})


def test_an_address_rests_from_its_turn_on() -> None:
    turns = AddressCooldowns(environment="here")
    assert turns.compute_elapsed_fraction(ADDRESS, now_ms=0) == 1
    turns.begin(ADDRESS, TURN)
    assert [turns.compute_elapsed_fraction(ADDRESS, now_ms=at_ms) for at_ms in (0, 500, 1_000)] == [0, 0.5, 1]


def test_an_address_that_was_let_in_twice_rests_for_both_turns() -> None:
    turns = AddressCooldowns(environment="here")
    turns.begin(ADDRESS, TURN)
    turns.hear([told(Cooldown(10, 1_010))], now_ms=20)
    assert [turns.compute_elapsed_fraction(ADDRESS, now_ms=at_ms) for at_ms in (1_000, 2_000)] == [0.5, 1]


def test_a_turn_that_was_over_before_the_next_began_is_no_matter() -> None:
    turns = AddressCooldowns(environment="here")
    turns.begin(ADDRESS, Cooldown(1_000, 2_000))
    turns.hear([told(TURN)], now_ms=1_001)
    assert turns.compute_elapsed_fraction(ADDRESS, now_ms=2_000) == 1
    turns.hear([told(Cooldown(2_000, 3_000), at_ms=2)], now_ms=2_001)
    assert [turns.compute_elapsed_fraction(ADDRESS, now_ms=at_ms) for at_ms in (2_500, 3_000)] == [0.5, 1]


def test_a_row_is_heard_once_and_ones_own_never() -> None:
    turns = AddressCooldowns(environment="here")
    turns.begin(ADDRESS, TURN)
    for _ in range(3):
        turns.hear([told(TURN, environment="here"), told(Cooldown(1, 1_001))], now_ms=9)
    assert turns.compute_elapsed_fraction(ADDRESS, now_ms=2_000) == 1


@given(st.lists(st.integers(0, 100 * NEXT_POLL_MAX_MS), max_size=20))
def test_no_address_rests_for_longer_than_four_hours_since_it_was_let_in(begun: list[int]) -> None:
    turns = AddressCooldowns(environment="here")
    rows = [
        told(Cooldown(at_ms, at_ms + NEXT_POLL_MAX_MS), at_ms=number) for number, at_ms in enumerate(begun, start=1)
    ]
    turns.hear(rows, now_ms=0)
    assert turns.compute_elapsed_fraction(ADDRESS, now_ms=max(begun, default=0) + NEXT_POLL_MAX_MS) == 1


def test_others_are_told_once_of_what_began_here_and_not_of_what_was_heard() -> None:
    turns = AddressCooldowns(environment="here")
    turns.begin(ADDRESS, TURN)
    turns.hear([CooldownRow("there", 1, {"another": TURN})], now_ms=1)
    assert [turns.take_unpublished(), turns.take_unpublished()] == [{KNOWN_AS: TURN}, {}]


def test_what_is_remembered_and_what_is_told_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_TURNS", 3)
    monkeypatch.setattr(under_test, "MAX_UNTOLD", 2)
    turns = AddressCooldowns(environment="here")
    for number in range(5):
        turns.begin(str(number), TURN)
    assert [str(number) for number in range(5) if turns.compute_elapsed_fraction(str(number), now_ms=0) < 1] == [
        "2",
        "3",
        "4",
    ]
    assert [*turns.take_unpublished()] == ["0", "1"]


def crowded() -> Meeting:
    """A site where many addresses poll, and somebody offers."""
    site = Meeting()
    site.pace.minutes[site.clock.ms // MINUTE_MS] = Counts({"restricted_offers": 9}, frozenset(range(CROWD)))
    return site


def test_environments_hear_of_each_others_turns_within_half_a_minute() -> None:
    site = crowded()
    here, there = site.new_pacing(), site.new_pacing()
    turn = Cooldown(site.clock.ms, site.clock.ms + 10 * MINUTE_MS)
    assert here.start_cooldown(ADDRESS, turn) == 1
    assert there.start_cooldown("another", turn) == 1
    here.note_poll(Pool.RESTRICTED, address=ADDRESS, away_ms=MINUTE_MS)
    here.flush()
    site.clock.ms += READ_EVERY_MS
    assert there.start_cooldown(ADDRESS, Cooldown(site.clock.ms, turn.next_ms)) < 1


def test_what_is_told_with_a_clock_that_is_late_is_heard() -> None:
    site = crowded()
    there = site.new_pacing()
    there.start_cooldown("another", Cooldown(site.clock.ms, site.clock.ms))
    turn = Cooldown(site.clock.ms, site.clock.ms + MINUTE_MS)
    site.pace.publish_cooldowns(told(turn, at_ms=site.clock.ms - TOLD_LATE_MS + 1))
    site.clock.ms += READ_EVERY_MS
    assert there.start_cooldown(ADDRESS, Cooldown(site.clock.ms, turn.next_ms)) < 1


def test_the_table_confirms_one_environments_turn_of_those_that_began_at_once() -> None:
    site = crowded()
    here, there = site.new_pacing(), site.new_pacing()
    first, second = (Cooldown(site.clock.ms + late_ms, site.clock.ms + MINUTE_MS) for late_ms in (0, 1))
    assert [here.start_cooldown(ADDRESS, first), there.start_cooldown(ADDRESS, second)] == [1, 1]
    assert there.confirm(ADDRESS, second) == 1
    assert here.confirm(ADDRESS, first) < 1


def test_a_turn_costs_no_request_of_its_own() -> None:
    site = crowded()
    pacing = site.new_pacing()
    pacing.flush()
    for number in range(100):
        pacing.start_cooldown(f"{number:016x}", Cooldown(site.clock.ms, site.clock.ms + MINUTE_MS))
        pacing.note_poll(Pool.RESTRICTED, address=ADDRESS, away_ms=MINUTE_MS)
        site.clock.ms += 1
        pacing.flush()
    site.clock.ms += WRITTEN_EVERY_MS
    pacing.flush()
    assert site.pace.turns == {}
    assert [len(row.turns) for row in site.pace.told] == [1, 99]


def test_where_nobody_offers_no_turns_are_told() -> None:
    site = Meeting()
    site.pace.minutes[site.clock.ms // MINUTE_MS] = Counts({}, frozenset(range(CROWD)))
    pacing = site.new_pacing()
    pacing.start_cooldown(ADDRESS, Cooldown(site.clock.ms, site.clock.ms + MINUTE_MS))
    pacing.note_poll(Pool.RESTRICTED, address=ADDRESS, away_ms=MINUTE_MS)
    pacing.flush()
    assert site.pace.told == []
