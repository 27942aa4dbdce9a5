"""Notes what becomes of offers, polls and answers, until the invocation's work is done and it is published.

Who moves an offer to its end, by a conditional write that is taken once, tells of it: so every offer is told of once.
A poll that got a client is told of together with its offer's end, which is a request less for each rendezvous.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sluice.rendezvous.counts.events import (
    UNKNOWN_TYPE,
    AnswerEvent,
    AnswerOutcome,
    Event,
    OfferEvent,
    OfferOutcome,
    PollEvent,
    PollOutcome,
    event_id,
)
from sluice.rendezvous.ports import NowMs, OfferRecord
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.candidates import client_address
from sluice.rendezvous.protocol.matching import Nat, Profile
from sluice.rendezvous.protocol.offers import Offer
from sluice.rendezvous.protocol.polls import Poll


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Of one invocation; safe for threads. `hash_of` and `country_of` take an address, which goes no further."""

    country_of: Callable[[str], str]
    hash_of: Callable[[str], str | None]
    trace: Callable[[], str | None]
    now_ms: NowMs
    new_id: Callable[[], str]
    _events: list[Event] = field(default_factory=list)

    def take(self) -> Sequence[Event]:
        """What was noted, and from now on is the caller's to publish."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    def described(self, record: OfferRecord, offer: Offer, *, trace: str | None = None) -> OfferRecord:
        """The record with what is told of the offer at its end. `trace` is the offer's own; else the invocation's."""
        address = client_address(offer.offer)
        country = UNKNOWN_COUNTRY if address is None else self.country_of(address)
        return replace(record, nat=offer.nat, country=country, trace=trace or self.trace())

    def profile(self, poll: Poll, *, address: str) -> Profile:
        """What is told of a poll at its end. `address` is where it came from."""
        return Profile(
            type=poll.type,
            nat=poll.nat,
            country=self.country_of(address),
            address=self.hash_of(address),
            relay_extension=poll.relay_pattern is not None,
            trace=self.trace(),
        )

    def poll_ended(self, poll: Poll, profile: Profile, outcome: PollOutcome, *, polled_at_ms: int) -> None:
        """Of a poll that got no client."""
        now_ms = self.now_ms()
        self._events.append(
            PollEvent(
                id=event_id(PollEvent.kind, self.new_id(), at_ms=polled_at_ms),
                at_ms=now_ms,
                outcome=outcome,
                nat=profile.nat,
                country=profile.country,
                proxy_type=profile.type,
                trace=profile.trace,
                clients=poll.clients,
                relay_extension=profile.relay_extension,
                waited_ms=now_ms - polled_at_ms,
                address=profile.address,
            )
        )

    def offer_ended(self, offer: OfferRecord, outcome: OfferOutcome) -> None:
        """Of an offer, and of the poll that got it where one did."""
        now_ms = self.now_ms()
        if offer.poll is not None:
            self._events.append(offer.poll)
        self._events.append(
            OfferEvent(
                id=event_id(OfferEvent.kind, offer.client_id, at_ms=offer.sent_at_ms),
                at_ms=now_ms,
                outcome=outcome,
                nat=offer.nat,
                country=offer.country,
                proxy_type=offer.poll.proxy_type if offer.poll else None,
                trace=offer.trace,
                method=offer.method,
                waited_ms=now_ms - offer.sent_at_ms,
            )
        )

    def answered(self, offer: OfferRecord) -> None:
        """Of an answer that reached its client."""
        self._answer(AnswerOutcome.SUCCESS, self._id_of(offer), offer.poll)
        self.offer_ended(offer, OfferOutcome.MATCHED)

    def answer_lost(self, offer: OfferRecord) -> None:
        """Of an answer in time to a client that is gone."""
        self._answer(AnswerOutcome.TIMEOUT, self._id_of(offer), offer.poll)
        self.offer_ended(offer, OfferOutcome.TIMEOUT)

    def answered_too_late(self, *, address: str) -> None:
        """Of an answer that nobody waits for: its offer's end is told of by who saw it."""
        id_ = event_id(AnswerEvent.kind, self.new_id(), at_ms=self.now_ms())
        self._answer(AnswerOutcome.TIMEOUT, id_, None, country=self.country_of(address))

    def _id_of(self, offer: OfferRecord) -> str:
        return event_id(AnswerEvent.kind, offer.client_id, at_ms=offer.sent_at_ms)

    def _answer(
        self, outcome: AnswerOutcome, id_: str, poll: PollEvent | None, *, country: str = UNKNOWN_COUNTRY
    ) -> None:
        self._events.append(
            AnswerEvent(
                id=id_,
                at_ms=self.now_ms(),
                outcome=outcome,
                nat=poll.nat if poll else Nat.UNKNOWN,
                country=poll.country if poll else country,
                proxy_type=poll.proxy_type if poll else UNKNOWN_TYPE,
                trace=self.trace(),
            )
        )
