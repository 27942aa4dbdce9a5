"""Counts of what happens often are held back, and none is lost or told twice while the environment lives."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.event_recorder import MAX_BUFFERED_MS, BufferedCounts
from tests.fakes import Clock

OFTEN, SELDOM = "PollsDeferred", "PollsMatched"


def test_what_happens_often_is_told_at_once_and_then_together() -> None:
    clock = Clock(0)
    held = BufferedCounts(names=frozenset({OFTEN}), now_ms=clock)
    assert held.take_due({OFTEN: 1}) == {OFTEN: 1}
    assert [held.take_due({OFTEN: 1}) for _ in range(3)] == [{}, {}, {}]
    clock.ms = MAX_BUFFERED_MS
    assert held.take_due({OFTEN: 1}) == {OFTEN: 4}


def test_anything_else_is_told_at_once_with_what_was_held_back() -> None:
    held = BufferedCounts(names=frozenset({OFTEN}), now_ms=Clock(0))
    held.take_due({OFTEN: 1})
    held.take_due({OFTEN: 1})
    assert held.take_due({SELDOM: 1}) == {OFTEN: 1, SELDOM: 1}


@given(st.lists(st.tuples(st.integers(0, 2 * MAX_BUFFERED_MS), st.sampled_from([OFTEN, SELDOM])), max_size=30))
def test_every_count_is_told_once(invocations: list[tuple[int, str]]) -> None:
    clock = Clock(0)
    held = BufferedCounts(names=frozenset({OFTEN}), now_ms=clock)
    told: Counter[str] = Counter()
    for later_ms, name in invocations:
        clock.ms += later_ms
        told += held.take_due({name: 1})
    clock.ms += MAX_BUFFERED_MS
    assert told + held.take_due({}) == Counter(name for _, name in invocations)
