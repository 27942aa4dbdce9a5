"""What went in and out, of metrics and of the statistics."""

from sluice.console.readings.counters import build_counters, sum_by_minute, sum_today
from sluice.times import DAY_MS, MINUTE_MS, parse_day_ms

TODAY = parse_day_ms("2026-11-25")
NOW = TODAY + 10 * MINUTE_MS + 5_000
SERIES = {
    "splitting MessagesRead a": [(TODAY - MINUTE_MS, 5.0), (TODAY, 1.0), (TODAY + 10 * MINUTE_MS, 2.0)],
    "splitting MessagesRead b": [(TODAY + 10 * MINUTE_MS, 4.0)],
    "federation MessagesRouted": [(TODAY, 9.0)],
}
EMPTY = {"rendezvous": None, "splitting": None, "federation": None, "pipeline": None}


def test_today_begins_at_midnight_and_adds_up_all_queues() -> None:
    assert sum_today(SERIES, ("splitting MessagesRead",), NOW) == 7
    assert sum_today(SERIES, ("splitting MessagesRead",), NOW + DAY_MS) == 0
    assert sum_today(None, ("splitting MessagesRead",), NOW) is None


def test_minutes_are_an_hours_of_which_the_last_is_this_one() -> None:
    minutes = sum_by_minute(SERIES, ("splitting MessagesRead",), NOW)
    assert minutes is not None
    assert (len(minutes), minutes[-1], minutes[-11], minutes[-12], sum(minutes)) == (60, 6.0, 1.0, 5.0, 12.0)


def test_offers_are_those_that_ended_and_those_that_are_open() -> None:
    status = EMPTY | {"rendezvous": {"recent_offers": {"received": 2, "answered": 7}}}
    found = build_counters(status, {"matched": 24, "denied": 3, "timeout": 1}, {})["rendezvous"]
    assert {name: found[name] for name in ("in", "out", "denied", "timed_out", "open")} == {
        "in": 30,
        "out": 24,
        "denied": 3,
        "timed_out": 1,
        "open": 2,
    }
    assert build_counters(status, None, None)["rendezvous"]["in"] is None


def test_a_part_that_isnt_there_has_no_counters() -> None:
    assert build_counters(EMPTY, None, SERIES) == {}
