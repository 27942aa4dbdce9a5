"""Where each message ended, and whether that adds up. Pure: ids in, numbers out."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum


class End(StrEnum):
    """Where a message may end. One that came to several ends, as it may, counts at the first of these."""

    LANDED = "landed"
    QUARANTINED = "quarantined"
    CONSUMED = "consumed"
    SPLIT = "split"
    DEAD = "dead-lettered"


class Hearing(StrEnum):
    """What became of an offer, as its client knows."""

    ANSWERED = "answered"
    DENIED = "denied"  # no proxy, or none that answered in time
    UNHEARD = "unheard"  # it must have been too late when a broker saw it
    CUT_OFF = "cut off"  # unheard, and the cloud was away within its patience
    UNSENT = "unsent"  # its client was told that it wasn't taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """By id: what was sent, and how often it came to each end.

    `offers` by their clients' hearing; `too_late` are those that brokers counted as given up by their clients.
    """

    sent: AbstractSet[str]
    ends: Mapping[End, Counter[str]]
    offers: Counter[Hearing]
    too_late: int

    @property
    def unaccounted(self) -> AbstractSet[str]:
        """Sent, and at no end."""
        return self.sent - self._arrived

    @property
    def unknown(self) -> AbstractSet[str]:
        """At an end, and sent by nobody."""
        return self._arrived - self.sent

    @property
    def repeated(self) -> int:
        """Arrivals beyond each message's first."""
        return sum(counts.total() for counts in self.ends.values()) - len(self._arrived)

    @property
    def unexplained(self) -> int:
        """Offers, at least, of which neither client nor broker knows what has become."""
        return max(self.offers[Hearing.UNHEARD] + self.offers[Hearing.CUT_OFF] - self.too_late, 0)

    def at(self, end: End) -> int:
        """Messages that ended there."""
        earlier = {id_ for each in list(End)[: list(End).index(end)] for id_ in self.ends.get(each, Counter())}
        return len(self.ends.get(end, Counter()).keys() - earlier)

    @property
    def _arrived(self) -> AbstractSet[str]:
        return {id_ for counts in self.ends.values() for id_ in counts}

    def text(self) -> str:
        """In one line each: messages, offers."""
        ends = " + ".join(f"{self.at(end)} {end}" for end in End)
        rest = f"{len(self.unaccounted)} unaccounted for, {len(self.unknown)} of nobody's, {self.repeated} repeated"
        offers = ", ".join(f"{self.offers[hearing]} {hearing}" for hearing in Hearing)
        return (
            f"{len(self.sent)} sent = {ends}; {rest}\n{self.offers.total()} offers: {offers}; {self.too_late} too late"
        )
