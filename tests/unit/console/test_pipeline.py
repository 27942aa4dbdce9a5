"""Page Pipeline's reading: what was landed, by minute."""

from sluice.console.readings.counters import CHARTED_MINUTES
from sluice.console.readings.pipeline import LANDED, count_landed
from sluice.times import MINUTE_MS


def test_minutes_are_what_the_queues_metric_counted() -> None:
    at_ms = 100 * MINUTE_MS + 1
    points = [(100 * MINUTE_MS, 7.0), (99 * MINUTE_MS, 5.0), (99 * MINUTE_MS, 6.0), (30 * MINUTE_MS, 9.0)]
    minutes = count_landed({LANDED: points}, at_ms=at_ms)
    assert minutes is not None
    assert len(minutes) == CHARTED_MINUTES
    assert minutes[-2:] == [
        {"at_ms": 99 * MINUTE_MS, "messages": 11},
        {"at_ms": 100 * MINUTE_MS, "messages": 7},
    ]
    assert not any(minute["messages"] for minute in minutes[:-2])


def test_minutes_are_unknown_until_the_metric_was_read() -> None:
    assert count_landed(None, at_ms=MINUTE_MS) is None
