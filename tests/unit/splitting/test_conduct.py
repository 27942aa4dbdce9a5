"""What a splitter remembers of how sessions behaved: who is cancelled, who is passed over, and for how long."""

from dataclasses import dataclass, field

import pytest

from sluice.splitting.sessions.state import Reason
from sluice.splitting.splitter import (
    FORGIVEN_ONCE,
    MAX_CANCELLATIONS,
    REPEATED_AFTER_S,
    REPEATED_WITHIN_S,
    SKIPPED_S,
    SessionCircuitBreaker,
)

AT_ONCE = sorted(
    {Reason.FILTER_TIMED_OUT, Reason.PATTERN_TIMED_OUT, Reason.PATTERN_FAILED, Reason.QUEUE_REFUSED} - FORGIVEN_ONCE
)


@dataclass
class Splitter:
    """A splitter's memory, with a clock of the test's."""

    now: float = 1_000.0
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.circuit_breaker = SessionCircuitBreaker(
            clock_s=lambda: self.now, cancel=lambda *said: self.told.append(said)
        )


@pytest.mark.parametrize("reason", AT_ONCE)
def test_what_nobody_does_by_accident_cancels_at_once(reason: Reason) -> None:
    splitter = Splitter()
    assert splitter.circuit_breaker.begin() == set()
    splitter.circuit_breaker.report_fault("s", reason)
    assert splitter.told == [("s", reason.value)]


@pytest.mark.parametrize("reason", sorted(FORGIVEN_ONCE))
def test_what_may_happen_once_cancels_when_it_happens_again(reason: Reason) -> None:
    splitter = Splitter()
    for after_s, told in ((0.0, 0), (REPEATED_AFTER_S - 0.1, 0), (0.2, 1)):
        splitter.now += after_s
        assert splitter.circuit_breaker.begin() == set()
        splitter.circuit_breaker.report_fault("s", reason)
        assert len(splitter.told) == told


@pytest.mark.parametrize("reason", sorted(FORGIVEN_ONCE))
def test_what_happened_long_ago_or_to_another_is_not_again(reason: Reason) -> None:
    splitter = Splitter()
    for session_id, after_s in (("s", 0.0), ("t", REPEATED_AFTER_S), ("s", REPEATED_WITHIN_S)):
        splitter.now += after_s
        splitter.circuit_breaker.begin()
        splitter.circuit_breaker.report_fault(session_id, reason)
    assert splitter.told == []


def test_who_was_cancelled_is_passed_over_for_a_while_and_then_told_of_again() -> None:
    splitter = Splitter()
    splitter.circuit_breaker.report_fault("s", Reason.FILTER_TIMED_OUT)
    splitter.now += SKIPPED_S - 1
    assert splitter.circuit_breaker.begin() == {"s"}
    splitter.circuit_breaker.report_fault("s", Reason.FILTER_TIMED_OUT)
    assert len(splitter.told) == 1
    splitter.now += 2
    assert splitter.circuit_breaker.begin() == set()
    splitter.circuit_breaker.report_fault("s", Reason.FILTER_TIMED_OUT)
    assert len(splitter.told) == 2


def test_a_queues_words_are_told_but_no_novel() -> None:
    splitter = Splitter()
    splitter.circuit_breaker.report_fault("s", Reason.QUEUE_REFUSED, "SendMessageBatch: AccessDenied: " + "x" * 1_000)
    [(_, reason)] = splitter.told
    assert reason.startswith("QueueRefused: SendMessageBatch: AccessDenied: x")
    assert len(reason) < 250


def test_a_batch_tells_of_so_many_and_the_next_of_the_others() -> None:
    splitter, sessions = Splitter(), [str(number) for number in range(MAX_CANCELLATIONS + 7)]
    for told, left in ((MAX_CANCELLATIONS, 7), (MAX_CANCELLATIONS + 7, 0)):
        out = splitter.circuit_breaker.begin()
        for session_id in sessions:
            if session_id not in out:
                splitter.circuit_breaker.report_fault(session_id, Reason.FILTER_TIMED_OUT)
        assert len(splitter.told) == told
        assert len(set(sessions) - splitter.circuit_breaker.begin()) == left
