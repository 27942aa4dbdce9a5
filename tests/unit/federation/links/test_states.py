"""How a link lives, event by event, and what always holds."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.federation.links.states import (
    CARRYING,
    HEARTBEAT_DUE_MS,
    PROBE_MS,
    STALL_CHECK_MS,
    AccessRefused,
    Command,
    LinkEvent,
    LinkState,
    LinkStatus,
    LinkUpdate,
    TimePassed,
    Unreachable,
    backoff_ms,
    should_notify_peer,
    step,
)

NOW = 1_000_000
UP = LinkStatus(state=LinkState.OPERATIONAL, carrying_since_ms=NOW, heartbeat_sent_ms=NOW, last_answer_ms=NOW)
DOWN = Unreachable("timed out")
DENIED = AccessRefused("AccessDenied")


def after(status: LinkStatus, news: LinkUpdate, *, now_ms: int = NOW, jitter: float = 0.0) -> LinkStatus:
    return step(status, news, endpoints=2, now_ms=now_ms, jitter=jitter)


def carries(status: LinkStatus) -> bool:
    return status.state in CARRYING


def told(before: LinkStatus, status: LinkStatus) -> bool:
    return should_notify_peer(before, status, served=False)


def test_a_new_link_connects_and_carries_once_the_peer_answers() -> None:
    connecting = after(LinkStatus(), TimePassed())
    assert (connecting.state, told(LinkStatus(), connecting)) == (LinkState.CONNECTING, True)
    up = after(connecting, LinkEvent.ANSWERED)
    assert (up.state, carries(up), told(connecting, up)) == (LinkState.OPERATIONAL, True, False)


def test_the_back_off_is_2_to_64_seconds() -> None:
    assert [backoff_ms(failures, jitter=0.0) for failures in range(1, 9)] == [
        2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000,
    ]  # fmt: skip
    assert backoff_ms(10**6, jitter=0.0) == 64_000


@given(st.integers(0, 100), st.floats(0, 1))
def test_jitter_takes_a_quarter_off_at_most(failures: int, jitter: float) -> None:
    whole = backoff_ms(failures, jitter=0.0)
    assert 0.75 * whole <= backoff_ms(failures, jitter=jitter) <= whole


def test_an_outage_lets_the_link_carry_no_more_and_wait_longer_each_time_at_the_next_endpoint() -> None:
    status, now, waits, tried = UP, NOW, [], []
    for _ in range(7):
        down = after(status, DOWN, now_ms=now)
        assert (down.state, carries(down), told(status, down)) == (LinkState.WAITING, False, False)
        waits.append(down.due_at_ms - now)
        now = down.due_at_ms
        assert after(down, TimePassed(), now_ms=now - 1) == down
        status = after(down, TimePassed(), now_ms=now)
        tried.append(status.endpoint)
    assert waits == [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]
    assert tried == [1, 0, 1, 0, 1, 0, 1]
    assert after(status, LinkEvent.ANSWERED).failures == 0


def test_many_reports_of_one_outage_are_one_failure() -> None:
    down = after(UP, DOWN)
    assert after(down, DOWN) == down


def test_a_peer_that_does_not_answer_is_unreachable() -> None:
    connecting = after(LinkStatus(), TimePassed())
    late = after(connecting, TimePassed(), now_ms=connecting.due_at_ms)
    assert (late.state, late.last_error) == (LinkState.WAITING, "no answer")


@pytest.mark.parametrize("status", [UP, LinkStatus(), LinkStatus(state=LinkState.CONNECTING)])
def test_a_refusal_fails_the_link_until_it_is_probed_after_a_quarter_of_an_hour(status: LinkStatus) -> None:
    failed = after(status, DENIED)
    assert (failed.state, failed.last_error) == (LinkState.FAILED, "AccessDenied")
    assert after(failed, TimePassed(), now_ms=NOW + PROBE_MS - 1) == failed
    probed = after(failed, TimePassed(), now_ms=NOW + PROBE_MS)
    assert (probed.state, told(failed, probed)) == (LinkState.CONNECTING, True)
    assert after(probed, LinkEvent.ANSWERED).last_error is None


@pytest.mark.parametrize("state", [LinkState.FAILED, LinkState.WAITING])
def test_a_retry_connects_at_once(state: LinkState) -> None:
    idle = LinkStatus(state=state, due_at_ms=NOW + PROBE_MS)
    connecting = after(idle, Command.RETRY)
    assert (connecting.state, told(idle, connecting)) == (LinkState.CONNECTING, True)


def test_a_heartbeat_goes_out_every_minute() -> None:
    assert not told(UP, after(UP, TimePassed(), now_ms=NOW + HEARTBEAT_DUE_MS - 1))
    beat = after(UP, TimePassed(), now_ms=NOW + HEARTBEAT_DUE_MS)
    assert told(UP, beat)
    assert not told(beat, after(beat, TimePassed(), now_ms=NOW + HEARTBEAT_DUE_MS + 1))


def test_a_served_link_has_its_peers_heartbeats_and_sends_its_own_when_they_stop() -> None:
    beat = after(UP, TimePassed(), now_ms=NOW + HEARTBEAT_DUE_MS)
    assert not should_notify_peer(UP, beat, served=True)
    stalled = after(beat, TimePassed(), now_ms=NOW + STALL_CHECK_MS + 1)
    assert should_notify_peer(beat, stalled, served=True)


def test_a_peer_silent_for_two_heartbeats_stalls_the_link_which_goes_on_carrying() -> None:
    late = NOW + STALL_CHECK_MS
    assert after(UP, TimePassed(), now_ms=late).state is LinkState.OPERATIONAL
    stalled = after(UP, TimePassed(), now_ms=late + 1)
    assert (stalled.state, carries(stalled)) == (LinkState.STALLED, True)
    heard = after(stalled, LinkEvent.ANSWERED, now_ms=late + 2)
    assert after(heard, TimePassed(), now_ms=late + 3).state is LinkState.OPERATIONAL


def test_a_forward_is_evidence_too() -> None:
    late = NOW + STALL_CHECK_MS + 1
    stalled = after(UP, TimePassed(), now_ms=late)
    assert after(stalled, LinkEvent.FORWARDED, now_ms=late).state is LinkState.OPERATIONAL


def test_a_paused_link_stays_so_until_it_is_resumed() -> None:
    paused = after(UP, Command.PAUSE)
    assert (paused.state, carries(paused), told(UP, paused)) == (LinkState.PAUSED, False, True)
    for news in (TimePassed(), DOWN, DENIED, LinkEvent.ANSWERED, LinkEvent.FORWARDED, Command.RETRY):
        assert after(paused, news, now_ms=NOW + PROBE_MS).state is LinkState.PAUSED
    resumed = after(paused, Command.RESUME)
    assert (resumed.state, told(paused, resumed)) == (LinkState.CONNECTING, True)


def test_a_drained_link_takes_in_no_more_and_pauses_when_empty() -> None:
    draining = after(UP, Command.DRAIN)
    assert (draining.draining, carries(draining), told(UP, draining)) == (True, True, True)
    assert after(draining, TimePassed(queued=1)).state is LinkState.OPERATIONAL
    empty = after(draining, TimePassed(queued=0))
    assert (empty.state, empty.draining) == (LinkState.PAUSED, True)
    resumed = after(empty, Command.RESUME)
    assert (resumed.state, resumed.draining) == (LinkState.CONNECTING, False)


def test_a_drain_can_be_called_off() -> None:
    draining = after(UP, Command.DRAIN)
    assert after(draining, Command.RESUME) == UP
    assert told(draining, UP)


def test_a_link_that_closes_goes_on_doing_so() -> None:
    closing = after(UP, LinkEvent.CLOSE)
    assert (closing.state, carries(closing)) == (LinkState.CLOSING, False)
    assert [after(closing, each) for each in Command] == [closing] * len(Command)


NEWS = st.one_of(
    st.builds(TimePassed, queued=st.integers(0, 2)),
    st.sampled_from([DOWN, DENIED]),
    st.sampled_from([*LinkEvent, *Command]),
)


@given(st.lists(st.tuples(NEWS, st.integers(0, PROBE_MS)), max_size=40))
def test_whatever_happens_a_link_that_ends_stays_so_and_every_new_try_is_told(
    news: Sequence[tuple[LinkUpdate, int]],
) -> None:
    status, now = LinkStatus(), NOW
    for each, pause_ms in news:
        now += pause_ms
        done = after(status, each, now_ms=now)
        if status.state is LinkState.CLOSING:
            assert done.state is LinkState.CLOSING
        if done.state is LinkState.CONNECTING and status.state is not LinkState.CONNECTING:
            assert told(status, done)
        if done.draining is not status.draining:
            assert told(status, done)
        if done == status:
            assert not told(status, done)
        assert done.endpoint in {0, 1}
        status = done


@given(st.lists(st.tuples(NEWS, st.integers(0, PROBE_MS)), max_size=20))
def test_a_link_that_is_neither_paused_nor_closed_comes_back(news: Sequence[tuple[LinkUpdate, int]]) -> None:
    status, now = LinkStatus(), NOW
    for each, pause_ms in news:
        now += pause_ms
        status = after(status, each, now_ms=now)
    if status.state in {LinkState.CLOSING, LinkState.PAUSED} or status.draining:
        return
    for each in (TimePassed(), TimePassed(), LinkEvent.ANSWERED, LinkEvent.FORWARDED):
        now += PROBE_MS if status.state in {LinkState.FAILED, LinkState.WAITING} else 1
        status = after(status, each, now_ms=now)
    assert status.state is LinkState.OPERATIONAL


def test_a_failure_that_is_heard_late_says_nothing_of_a_link_that_was_well_since() -> None:
    up = LinkStatus(state=LinkState.OPERATIONAL, carrying_since_ms=1_000, last_answer_ms=5_000)
    for news in (Unreachable, AccessRefused):
        late, recent = news("down", 4_999), news("down", 5_001)
        assert step(up, late, endpoints=1, now_ms=360_000, jitter=0.5) == up
        assert step(up, recent, endpoints=1, now_ms=360_000, jitter=0.5).state is not LinkState.OPERATIONAL
