"""When batch jobs are due. Days and times of day are UTC's. Pure: what time it is comes in."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Self

import msgspec

TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
ONE_DAY = timedelta(days=1)


class Daily(msgspec.Struct, frozen=True):
    """Every day at a time, given in minutes after midnight."""

    minute: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `HH:MM`. Raises ValueError."""
        found = TIME.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} is not a time of day, HH:MM")
        return cls(int(found[1]) * 60 + int(found[2]))

    def last_due(self, now_ms: int) -> date:
        """Find the day on which it was last due: today, or before that time yesterday."""
        now = moment(now_ms)
        today = now.hour * 60 + now.minute >= self.minute
        return now.date() if today else now.date() - ONE_DAY


def moment(now_ms: int) -> datetime:
    """Milliseconds since 1970 as a date and time."""
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC)
