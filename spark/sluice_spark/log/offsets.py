"""Positions in the staged log, and the offset JSON in Spark's checkpoint that names one. Pure.

An offset names a place and counts what lies before it; never an option, so a query may restart with others. What it
counts follows from the
place alone: Spark takes two different texts for new data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice_spark.errors import InvalidOffset

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Before row `row` of segment `segment`. A segment's end is the next one's beginning: see `planning.normal`."""

    segment: int
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Cumulative since the log began: monotonic over restarts."""

    messages: int = 0
    size: int = 0  # bytes of bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A position with what lies before it. `counters` by FLIP-477's and FLIP-33's names.

    `counted_until`: `totals` and `deletions_failed` are of what lies before that, where it isn't the position itself.
    With `mode=executors` it is where the batch begins: its tasks have yet to receive the rest.
    """

    position: Position
    totals: Totals = field(default_factory=Totals)
    deletions_failed: int = 0
    errors: int = 0  # bad records that lie before `errors_until`
    errors_until: Position = Position(0)
    counted_until: Position | None = None

    @property
    def counted(self) -> Position:
        """How far the totals reach."""
        return self.counted_until or self.position

    def json(self) -> dict[str, Any]:
        """Make what Spark stores."""
        return {
            "version": VERSION,
            "segment": self.position.segment,
            "row": self.position.row,
            "numRecordsIn": self.totals.messages,
            "numBytesIn": self.totals.size,
            "numSqsDeletionsFailed": self.deletions_failed,
            "numRecordsInErrors": self.errors,
            "errorsUntil": [self.errors_until.segment, self.errors_until.row],
            **({"countedUntil": [self.counted.segment, self.counted.row]} if self.counted_until else {}),
        }

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> "Offset":
        """Read an offset. Raises InvalidOffset for what isn't one, or is of a later version."""
        if offset.get("version") != VERSION:
            raise InvalidOffset(f"offset of version {offset.get('version')!r}, this package reads {VERSION}: {offset}")
        try:
            segment, row, messages, size, failed = (
                int(offset[name]) for name in ("segment", "row", "numRecordsIn", "numBytesIn", "numSqsDeletionsFailed")
            )
            errors = int(offset["numRecordsInErrors"])
            errors_until = Position(*(int(number) for number in offset["errorsUntil"]))
            counted = offset.get("countedUntil")
            counted_until = Position(*(int(number) for number in counted)) if counted is not None else None
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidOffset(f"malformed offset: {offset}") from error
        if segment < 0 or row < 0:
            raise InvalidOffset(f"negative position: {offset}")
        totals = Totals(messages=messages, size=size)
        return cls(
            position=Position(segment, row),
            totals=totals,
            deletions_failed=failed,
            errors=errors,
            errors_until=errors_until,
            counted_until=counted_until,
        )
