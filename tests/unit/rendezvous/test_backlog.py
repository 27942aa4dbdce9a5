"""Counts of what happens often are held back, and none is lost or told twice while the environment lives."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.event_recorder import HELD_BACK_MS, HeldCounts
from tests.fakes import Clock

OFTEN, SELDOM = "PollsDeferred", "PollsMatched"


def test_what_happens_often_is_told_at_once_and_then_together() -> None:
    clock = Clock(0)
    held = HeldCounts(names=frozenset({OFTEN}), now_ms=clock)
    assert held.due({OFTEN: 1}) == {OFTEN: 1}
    assert [held.due({OFTEN: 1}) for _ in range(3)] == [{}, {}, {}]
    clock.ms = HELD_BACK_MS
    assert held.due({OFTEN: 1}) == {OFTEN: 4}


def test_anything_else_is_told_at_once_with_what_was_held_back() -> None:
    held = HeldCounts(names=frozenset({OFTEN}), now_ms=Clock(0))
    held.due({OFTEN: 1})
    held.due({OFTEN: 1})
    assert held.due({SELDOM: 1}) == {OFTEN: 1, SELDOM: 1}


@given(st.lists(st.tuples(st.integers(0, 2 * HELD_BACK_MS), st.sampled_from([OFTEN, SELDOM])), max_size=30))
def test_every_count_is_told_once(invocations: list[tuple[int, str]]) -> None:
    clock = Clock(0)
    held = HeldCounts(names=frozenset({OFTEN}), now_ms=clock)
    told: Counter[str] = Counter()
    for later_ms, name in invocations:
        clock.ms += later_ms
        told += held.due({name: 1})
    clock.ms += HELD_BACK_MS
    assert told + held.due({}) == Counter(name for _, name in invocations)
