"""Metrics of what happens often are held back, and none is lost or told twice while the environment lives."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice.rendezvous.event_recorder import MAX_BUFFERED_MS, EventRecorder
from tests.fakes import Clock, make_recorder

OFTEN, SELDOM = "PollsDeferred", "PollsMatched"


def recorder(clock: Clock) -> EventRecorder:
    return replace(make_recorder(clock), buffered_metrics=frozenset({OFTEN}))


def test_what_happens_often_is_told_at_once_and_then_together() -> None:
    clock = Clock(0)
    held = recorder(clock)
    assert held.publish([OFTEN]) == {OFTEN: 1}
    assert [held.publish([OFTEN]) for _ in range(3)] == [{}, {}, {}]
    clock.ms = MAX_BUFFERED_MS
    assert held.publish([OFTEN]) == {OFTEN: 4}


def test_anything_else_is_told_at_once_with_what_was_held_back() -> None:
    held = recorder(Clock(0))
    held.publish([OFTEN])
    held.publish([OFTEN])
    assert held.publish([SELDOM]) == {OFTEN: 1, SELDOM: 1}


@given(st.lists(st.tuples(st.integers(0, 2 * MAX_BUFFERED_MS), st.sampled_from([OFTEN, SELDOM])), max_size=30))
def test_every_count_is_told_once(invocations: list[tuple[int, str]]) -> None:
    clock = Clock(0)
    held = recorder(clock)
    told: Counter[str] = Counter()
    for later_ms, name in invocations:
        clock.ms += later_ms
        told += held.publish([name])
    assert told + held.publish(at_shutdown=True) == Counter(name for _, name in invocations)
