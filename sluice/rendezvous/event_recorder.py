"""Notes what becomes of polls and answers, until the invocation's work is done and it is told.

Of offers it tells nothing: the write by which one comes to its end tells of that itself (`counts.stream`), so every
offer is told of once. Of polls there are many, and many end alike: an environment that has just told of some holds the
next ones back for some seconds, and tells of all that ended alike at once.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from sluice.rendezvous.backlog import Backlog
from sluice.rendezvous.counts.events import (
    AnswerEvent,
    AnswerOutcome,
    Event,
    PollEvent,
    PollOutcome,
    event_id,
    poll_ended,
    summed,
)
from sluice.rendezvous.ports import NowMs, OfferRecord
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Profile
from sluice.rendezvous.protocol.messages import Offer, Poll

NOT_PUBLISHED = "EventsNotPublished"  # a metric, and what the log says


class EventRecorder(msgspec.Struct, frozen=True, kw_only=True):
    """Safe for threads. `hash_of` and `country_of` take an address, which goes no further.

    `publisher` says how many it could not tell of, and raises nothing; without one, what was noted is forgotten.
    """

    country_of: Callable[[str], str]
    hash_of: Callable[[str], str | None]
    trace: Callable[[], str | None]
    now_ms: NowMs
    new_id: Callable[[], str]
    publisher: Callable[[Sequence[Event]], int] | None = None
    _events: list[Event] = msgspec.field(default_factory=list)
    _polls: list[PollEvent] = msgspec.field(default_factory=list)
    _backlog: Backlog = msgspec.field(default_factory=Backlog)

    def take(self) -> Sequence[Event]:
        """Hand out what was noted, and what is held back: from now on it is the caller's to tell."""
        taken = (*self._events, *summed(self._polls))
        self._events.clear()
        self._polls.clear()
        return taken

    def publish(self, *, at_shutdown: bool = False) -> Counter[str]:
        """Publish what was noted, at the invocation's end. Polls are held back until they are due, or the shutdown.

        Returns metrics, if there is something to count.
        """
        now_ms = self.now_ms()
        if self._polls and (at_shutdown or self._backlog.is_due(now_ms)):
            self._backlog.told_at_ms = now_ms
            events = self.take()
        else:
            events = tuple(self._events)
            self._events.clear()
        lost = self.publisher(events) if self.publisher and events else 0
        return Counter({NOT_PUBLISHED: lost} if lost else {})

    def described(self, record: OfferRecord, offer: Offer, *, trace: str | None = None) -> OfferRecord:
        """Add what is told of the offer at its end. `trace` is the offer's own; else the invocation's is taken."""
        country = UNKNOWN_COUNTRY if offer.address is None else self.country_of(offer.address)
        return replace(record, nat=offer.nat, country=country, trace=trace or self.trace() or None)

    def profile(self, poll: Poll, *, address: str) -> Profile:
        """Say what is told of a poll at its end. `address` is where it came from."""
        return Profile(
            type=poll.type,
            nat=poll.nat,
            country=self.country_of(address),
            address=self.hash_of(address),
            relay_extension=poll.relay_pattern is not None,
            trace=self.trace() or None,
        )

    def poll_ended(self, poll: Poll, profile: Profile, outcome: PollOutcome, *, polled_at_ms: int) -> None:
        """Note the end of a poll: it may be told of later, together with others."""
        self._polls.append(
            poll_ended(
                profile,
                outcome,
                name=self.new_id(),
                clients=poll.clients,
                polled_at_ms=polled_at_ms,
                at_ms=self.now_ms(),
            )
        )

    def answered_too_late(self, *, address: str) -> None:
        """Note an answer that nobody waits for."""
        now_ms, profile = self.now_ms(), Profile(country=self.country_of(address))
        self._events.append(
            AnswerEvent(
                id=event_id(AnswerEvent.kind, self.new_id(), at_ms=now_ms),
                at_ms=now_ms,
                outcome=AnswerOutcome.TIMEOUT,
                nat=profile.nat,
                country=profile.country,
                proxy_type=profile.type,
                trace=self.trace() or None,
            )
        )
