"""Converts times to ISO 8601 text in UTC and back. Pure: no function reads the clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sluice.errors import Malformed

NowMs = Callable[[], int]  # Returns the wall clock's time in milliseconds since 1970.
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(at_ms: int) -> str:
    """Format milliseconds since 1970 as `2026-11-21T14:00:00.123Z`."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time_ms(text: str) -> int:
    """Parse an ISO 8601 time to milliseconds since 1970. Without an offset, the time is UTC.

    Raises `Malformed`, also for a time whose year in UTC isn't 1 to 9999, because it can't be formatted.
    """
    try:
        time = datetime.fromisoformat(text)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(f"no time: {error}") from None
    return (time - _EPOCH) // timedelta(milliseconds=1)


def format_day(at_ms: int) -> str:
    """Format milliseconds since 1970 as a UTC day, `2026-11-21`."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).date().isoformat()


def parse_day_ms(day: str) -> int:
    """Return the beginning of a UTC day in milliseconds since 1970. Raises `Malformed`."""
    return parse_time_ms(f"{day}T00:00:00Z")
