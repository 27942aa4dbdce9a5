"""Notes what becomes of polls and answers, until the invocation's work is done and it is told.

Of offers it tells nothing: the write by which one comes to its end tells of that itself (`counts.stream`), so every
offer is told of once. Of polls there are many, and many end alike: an environment that has just told of some holds the
next ones back for some seconds, and tells of all that ended alike at once. So it does with metrics.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.rendezvous.counts.events import (
    UNKNOWN_TYPE,
    AnswerEvent,
    Event,
    PollEvent,
    event_id,
    summed,
)
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY, parse_address
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Profile
from sluice.rendezvous.protocol.messages import Poll
from sluice.times import NowMs

if TYPE_CHECKING:
    from maxminddb import Reader

NOT_PUBLISHED = "EventsNotPublished"  # a metric, and what the log says
HELD_BACK_MS = 20_000
CODE_CHARACTERS = 2  # of a country


@dataclass(slots=True)
class Backlog:
    """Says when it is told: at once the first time, and then so long after the last."""

    told_at_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time."""
        return self.told_at_ms is None or now_ms - self.told_at_ms >= HELD_BACK_MS


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

    def poll_ended(self, poll: Poll, profile: Profile, end: End, *, polled_at_ms: int) -> None:
        """Note the end of a poll: it may be told of later, together with others."""
        now_ms = self.now_ms()
        self._polls.append(
            PollEvent(
                id=event_id(PollEvent.kind, self.new_id(), at_ms=polled_at_ms),
                at_ms=now_ms,
                outcome=end.event,
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

    def answered_too_late(self, *, address: str) -> None:
        """Note an answer that nobody waits for."""
        now_ms = self.now_ms()
        self._events.append(
            AnswerEvent(
                id=event_id(AnswerEvent.kind, self.new_id(), at_ms=now_ms),
                at_ms=now_ms,
                outcome=End.ANSWER_TOO_LATE.event,
                country=self.country_of(address),
                proxy_type=UNKNOWN_TYPE,  # which proxy's it was isn't known
                trace=self.trace() or None,
            )
        )


@dataclass(slots=True, kw_only=True)
class HeldCounts:
    """Metrics of an environment, of which those of `names` are held back if an invocation has no others.

    Whoever ends the environment publishes the rest.
    """

    names: frozenset[str]
    now_ms: NowMs
    _counts: Counter[str] = field(default_factory=Counter)
    _backlog: Backlog = field(default_factory=Backlog)

    def due(self, counts: Mapping[str, int]) -> Counter[str]:
        """Add an invocation's counts; returns what is to be published now."""
        self._counts.update(counts)
        now_ms = self.now_ms()
        if counts.keys() <= self.names and not self._backlog.is_due(now_ms):
            return Counter()
        self._backlog = Backlog(now_ms)
        return self.rest()

    def rest(self) -> Counter[str]:
        """Hand out all that is held back."""
        rest, self._counts = self._counts, Counter()
        return rest


@dataclass(slots=True)
class Countries:
    """Looks addresses up. `file` is the database's path; without one every country is unknown, and where it fails too.

    The database is opened, and its library imported, by the first look-up: what isn't asked for costs no start.
    """

    file: str | None = None
    _reader: "Reader | None" = field(default=None, repr=False)

    def of(self, address: str) -> str:
        """Look up two capital letters; `??` for what the database hasn't, as private addresses, and for no address."""
        found = parse_address(address)
        if self.file is None or found is None:
            return UNKNOWN_COUNTRY
        try:
            return country_of_record(self._open(self.file).get(found))
        except Exception:  # noqa: BLE001 - a database of IPv4 alone asked for IPv6, or a damaged one: no client waits for that
            return UNKNOWN_COUNTRY

    def _open(self, file: str) -> "Reader":
        if self._reader is None:
            import maxminddb  # noqa: PLC0415 - only where a file is configured: it is in no other bundle

            self._reader = maxminddb.open_database(file)
        return self._reader


def country_of_record(record: Any) -> str:
    """Find the code in a record: `country.iso_code` of MaxMind and DB-IP, `country_code` or `country` of others."""
    if not isinstance(record, dict):
        return UNKNOWN_COUNTRY
    country = record.get("country")
    code = country.get("iso_code") if isinstance(country, dict) else record.get("country_code", country)
    if not isinstance(code, str) or len(code) != CODE_CHARACTERS or not (code.isascii() and code.isalpha()):
        return UNKNOWN_COUNTRY
    return code.upper()
