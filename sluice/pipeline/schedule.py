"""Due times of batch jobs, in UTC. Pure: the current time is a parameter."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Self

import msgspec

TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
ONE_DAY = timedelta(days=1)


class Daily(msgspec.Struct, frozen=True):
    """A daily schedule. `minute` is the number of minutes after midnight UTC."""

    minute: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a daily schedule from `HH:MM`. Raises ValueError."""
        match = TIME.fullmatch(text)
        if not match:
            raise ValueError(f"{text!r} is not a time of day, HH:MM")
        return cls(int(match[1]) * 60 + int(match[2]))

    def find_last_due_day(self, now_ms: int) -> date:
        """Return the day on which the job was last due: today, or yesterday before today's time."""
        now = convert_to_utc(now_ms)
        today = now.hour * 60 + now.minute >= self.minute
        return now.date() if today else now.date() - ONE_DAY


def convert_to_utc(now_ms: int) -> datetime:
    """Convert milliseconds since 1970 to a date and time in UTC."""
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC)
