"""Counts the events of a batch of the stream, and has those published that were counted, up to the first that can't be.

A batch comes again from that record on: what was counted is counted no more, as every count knows its position; what
was published of the record itself is published once more, under the same id.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluice.errors import SluiceError
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.counts.stream import StreamRecord

if TYPE_CHECKING:  # the adapter's type; a shell is given it, and imports none
    from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch. `done` is how many of its records, from the first on, are counted and published."""

    done: int
    counted: int = 0
    published: int = 0
    reason: str = ""  # why the first of the others isn't done


class Counting(msgspec.Struct, frozen=True, kw_only=True):
    """Of one execution environment.

    `is_wanted` says whether anybody gets what is published, and may raise a `SluiceError`. `publish` sends events in
    order, says how many it sent from the first on, and raises nothing.
    """

    statistics: "DynamoStatisticsStore"
    is_wanted: Callable[[], bool]
    publish: Callable[[Sequence[Event]], int]

    def count(self, records: Sequence[StreamRecord]) -> Counted:
        """Count the events of records that are in order, and publish them where that is wanted."""
        failed = self.statistics.add([tally(event, record.position) for record in records for event in record.events])
        counted = next((place for place, each in enumerate(records) if each.position in failed), len(records))
        # By the place of its record in the batch, each event that may be published.
        events = [(place, event) for place, record in enumerate(records[:counted]) for event in record.events]
        sent, reason = self._published([event for _, event in events])
        if sent is not None and sent < len(events):
            return Counted(done=events[sent][0], counted=len(events), published=sent, reason=reason)
        reason = failed[records[counted].position] if counted < len(records) else ""
        return Counted(done=counted, counted=len(events), published=sent or 0, reason=reason)

    def _published(self, events: Sequence[Event]) -> tuple[int | None, str]:
        """Publish events: how many, and why no more; None where nobody wants any."""
        try:
            if not events or not self.is_wanted():
                return None, ""
        except SluiceError as error:
            return 0, f"who is bound isn't known: {error}"
        sent = self.publish(events)
        return sent, f"{len(events) - sent} of {len(events)} events couldn't be published"
