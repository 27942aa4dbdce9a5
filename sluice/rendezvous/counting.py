"""Counts events that come at least once: those that came lately aren't counted again."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.ports import StatisticsStore

MAX_REMEMBERED = 50_000  # ids, some 10 MB: at a hundred events a second what came in the last minutes


@dataclass(slots=True)
class Counting:
    """Of one execution environment, which knows what itself has counted, and not what the others have.

    A message that is deleted too late comes again to any of them, and then may be counted twice.
    """

    statistics: StatisticsStore
    _counted: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def count(self, events: Sequence[Event]) -> Mapping[str, str]:
        """Count each event once. Returns the ids of those that aren't counted, with the reason: they may come again."""
        new = {event.id: event for event in events if event.id not in self._counted}
        failed = self.statistics.add([tally(event) for event in new.values()])
        self._counted.update((id_, None) for id_ in new if id_ not in failed)
        while len(self._counted) > MAX_REMEMBERED:
            self._counted.popitem(last=False)
        return failed
