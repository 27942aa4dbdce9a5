"""Publishes and counts the events of a batch of the table's stream.

If a record fails, the stream delivers the batch again from that record on. Events before it aren't repeated. Repeated
events have the same ids, and may be counted twice: a count is at least the true number.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluice.errors import SluiceError
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.counts.stream import StreamRecord

if TYPE_CHECKING:  # only for type hints: a shell gets its adapters as arguments
    from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore


class CountResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a batch. `done` is the number of its records, from the first, that are counted and published."""

    done: int = 0
    counted: int = 0
    published: int = 0
    reason: str = ""  # why the first remaining record failed


class EventCounter(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and publishes events in one execution environment.

    `is_wanted` returns whether a binding matches published events, and may raise a `SluiceError`. `publish` sends
    events in order, returns how many it sent from the first on, and raises nothing.
    """

    statistics: "DynamoStatisticsStore"
    is_wanted: Callable[[], bool]
    publish: Callable[[Sequence[Event]], int]

    def count(self, records: Sequence[StreamRecord]) -> CountResult:
        """Publish the events of valid records if a binding matches them, and count them."""
        # Each event with the position of its record.
        events = [(place, event) for place, record in enumerate(records) for event in record.events]
        sent, done, reason = 0, len(records), ""
        try:
            if events and self.is_wanted():
                sent = self.publish([event for _, event in events])
                if sent < len(events):
                    done, reason = (
                        events[sent][0],
                        f"{len(events) - sent} of {len(events)} events couldn't be published",
                    )
            counted = [event for place, event in events if place < done]
            self.statistics.add([counts for event in counted if (counts := tally(event))])
        except SluiceError as error:
            return CountResult(published=sent, reason=str(error))
        return CountResult(done=done, counted=len(counted), published=sent, reason=reason)
