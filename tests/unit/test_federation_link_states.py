"""How a link lives, event by event, and what always holds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.links.states import (
    CARRYING,
    HEARTBEAT_MS,
    PROBE_MS,
    STALLED_AFTER_MS,
    Action,
    Event,
    Happening,
    Refused,
    State,
    Status,
    Step,
    Tick,
    Unreachable,
    back_off_ms,
    step,
)

NOW = 1_000_000
UP = Status(state=State.OPERATIONAL, carrying_since_ms=NOW, heartbeat_sent_ms=NOW, last_answer_ms=NOW)
DOWN = Unreachable("timed out")
DENIED = Refused("AccessDenied")


def after(status: Status, event: Event, *, now_ms: int = NOW, jitter: float = 0.0) -> Step:
    return step(status, event, endpoints=2, now_ms=now_ms, jitter=jitter)


def test_a_new_link_connects_and_carries_once_the_peer_answers() -> None:
    connecting = after(Status(), Tick())
    assert (connecting.status.state, connecting.actions) == (State.CONNECTING, (Action.CONNECT,))
    up = after(connecting.status, Happening.ANSWERED)
    assert (up.status.state, up.actions) == (State.OPERATIONAL, (Action.MAPPING_ON,))


def test_the_back_off_is_2_to_64_seconds() -> None:
    assert [back_off_ms(failures, jitter=0.0) for failures in range(1, 9)] == [
        2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000,
    ]  # fmt: skip
    assert back_off_ms(10**6, jitter=0.0) == 64_000


@given(st.integers(0, 100), st.floats(0, 1))
def test_jitter_takes_a_quarter_off_at_most(failures: int, jitter: float) -> None:
    whole = back_off_ms(failures, jitter=0.0)
    assert 0.75 * whole <= back_off_ms(failures, jitter=jitter) <= whole


def test_an_outage_turns_the_mapping_off_and_waits_longer_each_time_at_the_next_endpoint() -> None:
    status, now, waits, tried = UP, NOW, [], []
    for _ in range(7):
        down = after(status, DOWN, now_ms=now)
        assert down.status.state is State.WAITING
        assert (Action.MAPPING_OFF in down.actions) == (status.state in CARRYING)
        waits.append(down.status.due_at_ms - now)
        now = down.status.due_at_ms
        assert after(down.status, Tick(), now_ms=now - 1).status == down.status
        status = after(down.status, Tick(), now_ms=now).status
        tried.append(status.endpoint)
    assert waits == [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]
    assert tried == [1, 0, 1, 0, 1, 0, 1]
    assert after(status, Happening.ANSWERED).status.failures == 0


def test_many_reports_of_one_outage_are_one_failure() -> None:
    down = after(UP, DOWN).status
    assert after(down, DOWN) == Step(down, ())


def test_a_peer_that_does_not_answer_is_unreachable() -> None:
    connecting = after(Status(), Tick()).status
    late = after(connecting, Tick(), now_ms=connecting.due_at_ms)
    assert (late.status.state, late.status.last_error) == (State.WAITING, "no answer")


@pytest.mark.parametrize("status", [UP, Status(), Status(state=State.CONNECTING)])
def test_a_refusal_fails_the_link_until_it_is_probed_after_a_quarter_of_an_hour(status: Status) -> None:
    failed = after(status, DENIED).status
    assert (failed.state, failed.last_error) == (State.FAILED, "AccessDenied")
    assert after(failed, Tick(), now_ms=NOW + PROBE_MS - 1).actions == ()
    probed = after(failed, Tick(), now_ms=NOW + PROBE_MS)
    assert (probed.status.state, probed.actions) == (State.CONNECTING, (Action.CONNECT,))
    assert after(probed.status, Happening.ANSWERED).status.last_error is None


@pytest.mark.parametrize("state", [State.FAILED, State.WAITING])
def test_a_retry_connects_at_once(state: State) -> None:
    assert after(Status(state=state, due_at_ms=NOW + PROBE_MS), Happening.RETRY).actions == (Action.CONNECT,)


def test_a_heartbeat_goes_out_every_minute() -> None:
    assert after(UP, Tick(), now_ms=NOW + HEARTBEAT_MS - 1).actions == ()
    beat = after(UP, Tick(), now_ms=NOW + HEARTBEAT_MS)
    assert beat.actions == (Action.HEARTBEAT,)
    assert after(beat.status, Tick(), now_ms=NOW + HEARTBEAT_MS + 1).actions == ()


def test_a_peer_silent_for_two_heartbeats_stalls_the_link_and_the_mapping_stays_on() -> None:
    late = NOW + STALLED_AFTER_MS
    assert after(UP, Tick(), now_ms=late).status.state is State.OPERATIONAL
    stalled = after(UP, Tick(), now_ms=late + 1)
    assert stalled.status.state is State.STALLED
    assert Action.MAPPING_OFF not in stalled.actions
    heard = after(stalled.status, Happening.ANSWERED, now_ms=late + 2)
    assert after(heard.status, Tick(), now_ms=late + 3).status.state is State.OPERATIONAL


def test_a_forward_is_evidence_too() -> None:
    late = NOW + STALLED_AFTER_MS + 1
    stalled = after(UP, Tick(), now_ms=late).status
    assert after(stalled, Happening.FORWARDED, now_ms=late).status.state is State.OPERATIONAL


def test_a_queue_that_ages_while_nothing_is_forwarded_stalls_the_link() -> None:
    late = NOW + STALLED_AFTER_MS + 1
    heard = replace(UP, last_answer_ms=late)
    aged = Tick(queued=5, oldest_age_ms=STALLED_AFTER_MS + 1)
    assert after(heard, aged, now_ms=late).status.state is State.STALLED
    assert after(heard, Tick(queued=5, oldest_age_ms=5), now_ms=late).status.state is State.OPERATIONAL
    assert after(replace(heard, last_forward_ms=late), aged, now_ms=late).status.state is State.OPERATIONAL


def test_a_paused_link_stays_so_until_it_is_resumed() -> None:
    paused = after(UP, Happening.PAUSE)
    assert (paused.status.state, paused.actions) == (State.PAUSED, (Action.MAPPING_OFF,))
    for event in (Tick(), DOWN, DENIED, Happening.ANSWERED, Happening.FORWARDED, Happening.RETRY):
        assert after(paused.status, event, now_ms=NOW + PROBE_MS).status.state is State.PAUSED
    assert after(paused.status, Happening.RESUME).actions == (Action.CONNECT,)


def test_a_drained_link_takes_in_no_more_and_pauses_when_empty() -> None:
    draining = after(UP, Happening.DRAIN)
    assert draining.actions == (Action.INTAKE_OFF,)
    assert after(draining.status, Tick(queued=1)).status.state is State.OPERATIONAL
    empty = after(draining.status, Tick(queued=0))
    assert (empty.status.state, empty.actions) == (State.PAUSED, (Action.MAPPING_OFF,))
    assert after(empty.status, Happening.RESUME).actions == (Action.INTAKE_ON, Action.CONNECT)


def test_a_drain_can_be_called_off() -> None:
    draining = after(UP, Happening.DRAIN).status
    assert after(draining, Happening.RESUME) == Step(UP, (Action.INTAKE_ON,))


def test_a_closed_link_is_torn_down_first_and_stays_closed() -> None:
    closing = after(UP, Happening.CLOSE)
    assert (closing.status.state, closing.actions) == (State.CLOSING, (Action.MAPPING_OFF, Action.TEAR_DOWN))
    assert after(closing.status, Happening.RESUME) == Step(closing.status, ())
    closed = after(closing.status, Happening.TORN_DOWN)
    assert closed.status.state is State.CLOSED
    assert after(closed.status, Happening.RETRY) == Step(closed.status, ())


EVENTS = st.one_of(
    st.builds(Tick, queued=st.integers(0, 2), oldest_age_ms=st.integers(0, 2 * STALLED_AFTER_MS)),
    st.sampled_from([DOWN, DENIED]),
    st.sampled_from(Happening),
)


@given(st.lists(st.tuples(EVENTS, st.integers(0, PROBE_MS)), max_size=40))
def test_whatever_happens_mapping_and_intake_follow_the_state(events: Sequence[tuple[Event, int]]) -> None:
    status, now, mapping, intake = Status(), NOW, False, True
    for event, pause_ms in events:
        now += pause_ms
        done = after(status, event, now_ms=now)
        for action in done.actions:
            mapping = {Action.MAPPING_ON: True, Action.MAPPING_OFF: False}.get(action, mapping)
            intake = {Action.INTAKE_ON: True, Action.INTAKE_OFF: False}.get(action, intake)
        assert mapping == (done.status.state in CARRYING)
        assert intake != done.status.draining
        if status.state in {State.CLOSING, State.CLOSED}:
            assert done.status.state in {State.CLOSING, State.CLOSED}
        assert done.status.endpoint in {0, 1}
        status = done.status


@given(st.lists(st.tuples(EVENTS, st.integers(0, PROBE_MS)), max_size=20))
def test_a_link_that_is_neither_paused_nor_closed_comes_back(events: Sequence[tuple[Event, int]]) -> None:
    status, now = Status(), NOW
    for event, pause_ms in events:
        now += pause_ms
        status = after(status, event, now_ms=now).status
    if status.state in {State.PAUSED, State.CLOSING, State.CLOSED} or status.draining:
        return
    for event in (Tick(), Tick(), Happening.ANSWERED, Happening.FORWARDED):
        now += PROBE_MS if status.state in {State.FAILED, State.WAITING} else 1
        status = after(status, event, now_ms=now).status
    assert status.state is State.OPERATIONAL
