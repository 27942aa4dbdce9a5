"""Times as texts and back: ISO 8601 in UTC. Pure; nobody here knows what time it is."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sluice.errors import Malformed

NowMs = Callable[[], int]  # the wall clock, milliseconds since 1970
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(at_ms: int) -> str:
    """Milliseconds since 1970 as `2026-11-21T14:00:00.123Z`."""
    return _utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, which is UTC's where it doesn't say. Raises `Malformed`."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise Malformed(f"no time: {error}") from None
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def day_of(at_ms: int) -> str:
    """Give the UTC day, as `2026-11-21`."""
    return _utc(at_ms).date().isoformat()


def day_start_ms(day: str) -> int:
    """When a UTC day begins, in milliseconds since 1970. Raises `Malformed`."""
    return ms_of(f"{day}T00:00:00Z")


def _utc(at_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=at_ms)
