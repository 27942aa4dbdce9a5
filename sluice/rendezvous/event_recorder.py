"""Notes what becomes of offers, polls and answers, until the invocation's work is done and it is published.

Who takes an offer's answer, by a conditional write that is taken once, tells of its end; of one without an answer, who
sweeps its queue: so every offer is told of once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sluice.rendezvous.counts.events import (
    AnswerEvent,
    AnswerOutcome,
    Event,
    OfferEvent,
    OfferOutcome,
    PollOutcome,
    event_id,
    poll_ended,
)
from sluice.rendezvous.ports import Match, NowMs, OfferRecord
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import Profile
from sluice.rendezvous.protocol.messages import Offer, Poll

NOT_PUBLISHED = "EventsNotPublished"  # a metric, and what the log says


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorder:
    """Safe for threads. `hash_of` and `country_of` take an address, which goes no further.

    `publisher` says how many it could not send, and raises nothing; without one, what was noted is forgotten.
    """

    country_of: Callable[[str], str]
    hash_of: Callable[[str], str | None]
    trace: Callable[[], str | None]
    now_ms: NowMs
    new_id: Callable[[], str]
    publisher: Callable[[Sequence[Event]], int] | None = None
    _events: list[Event] = field(default_factory=list)

    def take(self) -> Sequence[Event]:
        """Hand out what was noted: from now on it is the caller's to publish."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    def publish(self) -> Counter[str]:
        """Publish what was noted, at the invocation's end. Returns metrics, where there is something to count."""
        events = self.take()
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
        """Note the end of a poll."""
        self._events.append(
            poll_ended(
                profile,
                outcome,
                name=self.new_id(),
                clients=poll.clients,
                polled_at_ms=polled_at_ms,
                at_ms=self.now_ms(),
            )
        )

    def offer_ended(self, offer: OfferRecord, outcome: OfferOutcome, *, proxy_type: str | None = None) -> None:
        """Note the end of an offer."""
        now_ms = self.now_ms()
        self._events.append(
            OfferEvent(
                id=event_id(OfferEvent.kind, offer.client_id, at_ms=offer.sent_at_ms),
                at_ms=now_ms,
                outcome=outcome,
                nat=offer.nat,
                country=offer.country,
                proxy_type=proxy_type,
                trace=offer.trace,
                method=offer.method,
                waited_ms=now_ms - offer.sent_at_ms,
            )
        )

    def answered(self, match: Match) -> None:
        """Note an answer that reached its client, and the offer's end."""
        self._answer_ended(AnswerOutcome.SUCCESS, match)
        self.offer_ended(match.record, OfferOutcome.MATCHED, proxy_type=match.profile.type)

    def answer_lost(self, match: Match) -> None:
        """Note an answer in time to a client that is gone, and the offer's end."""
        self._answer_ended(AnswerOutcome.TIMEOUT, match)
        self.offer_ended(match.record, OfferOutcome.TIMEOUT, proxy_type=match.profile.type)

    def answered_too_late(self, *, address: str) -> None:
        """Note an answer that nobody waits for: its offer's end is told of by who saw it."""
        self._answer_ended(AnswerOutcome.TIMEOUT, None, country=self.country_of(address))

    def _answer_ended(self, outcome: AnswerOutcome, match: Match | None, *, country: str = UNKNOWN_COUNTRY) -> None:
        profile = match.profile if match else Profile(country=country)
        name, began_ms = (match.record.client_id, match.record.sent_at_ms) if match else (self.new_id(), self.now_ms())
        self._events.append(
            AnswerEvent(
                id=event_id(AnswerEvent.kind, name, at_ms=began_ms),
                at_ms=self.now_ms(),
                outcome=outcome,
                nat=profile.nat,
                country=profile.country,
                proxy_type=profile.type,
                trace=self.trace() or None,
            )
        )
