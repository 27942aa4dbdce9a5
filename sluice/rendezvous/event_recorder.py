"""Records the outcomes of polls and answers, and publishes them after the invocation's work.

Events of offers aren't recorded here: the update that stores an offer's end becomes its event (`counts.stream`), so
each offer has exactly one. Polls are frequent and mostly end alike, so an environment publishes them at most once per
`MAX_BUFFERED_MS`, with equal outcomes combined. Metrics are held back in the same way.
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
    combine_polls,
    event_id,
)
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY, parse_address
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Profile
from sluice.rendezvous.protocol.messages import Poll
from sluice.times import NowMs

if TYPE_CHECKING:
    from maxminddb import Reader

NOT_PUBLISHED = "EventsNotPublished"  # the name of a metric and of log entries
MAX_BUFFERED_MS = 20_000
CODE_CHARACTERS = 2  # length of a country code


@dataclass(slots=True)
class Backlog:
    """Decides when a backlog is published: immediately the first time, then `MAX_BUFFERED_MS` after the last time."""

    published_at_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Return whether the backlog must be published now."""
        return self.published_at_ms is None or now_ms - self.published_at_ms >= MAX_BUFFERED_MS


class EventRecorder(msgspec.Struct, frozen=True, kw_only=True):
    """Records events and publishes them; thread-safe.

    `hash_address` and `look_up_country` take an address, which is never stored. `publisher` returns how many events it
    could not publish, and raises nothing. Without one, events are discarded.
    """

    look_up_country: Callable[[str], str]
    hash_address: Callable[[str], str | None]
    trace: Callable[[], str | None]
    now_ms: NowMs
    new_id: Callable[[], str]
    publisher: Callable[[Sequence[Event]], int] | None = None
    _events: list[Event] = msgspec.field(default_factory=list)
    _polls: list[PollEvent] = msgspec.field(default_factory=list)
    _backlog: Backlog = msgspec.field(default_factory=Backlog)

    def take(self) -> Sequence[Event]:
        """Return and forget all recorded events. The caller must publish them."""
        taken = (*self._events, *combine_polls(self._polls))
        self._events.clear()
        self._polls.clear()
        return taken

    def publish(self, *, at_shutdown: bool = False) -> Counter[str]:
        """Publish the recorded events at the invocation's end. Polls are held back until they are due, or the shutdown.

        Returns the number of lost events as a metric, if there are any.
        """
        now_ms = self.now_ms()
        if self._polls and (at_shutdown or self._backlog.is_due(now_ms)):
            self._backlog.published_at_ms = now_ms
            events = self.take()
        else:
            events = tuple(self._events)
            self._events.clear()
        lost = self.publisher(events) if self.publisher and events else 0
        return Counter({NOT_PUBLISHED: lost} if lost else {})

    def profile(self, poll: Poll, *, address: str) -> Profile:
        """Build the profile for the event of a poll's end. `address` is the proxy's."""
        return Profile(
            type=poll.type,
            nat=poll.nat,
            country=self.look_up_country(address),
            address=self.hash_address(address),
            relay_extension=poll.relay_pattern is not None,
            trace=self.trace() or None,
        )

    def record_poll(self, poll: Poll, profile: Profile, end: End, *, polled_at_ms: int) -> None:
        """Record the end of a poll, which may be published later, combined with others."""
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

    def record_late_answer(self, *, address: str) -> None:
        """Record an answer for which no client waits."""
        now_ms = self.now_ms()
        self._events.append(
            AnswerEvent(
                id=event_id(AnswerEvent.kind, self.new_id(), at_ms=now_ms),
                at_ms=now_ms,
                outcome=End.ANSWER_TOO_LATE.event,
                country=self.look_up_country(address),
                proxy_type=UNKNOWN_TYPE,  # the answer doesn't identify its proxy
                trace=self.trace() or None,
            )
        )


@dataclass(slots=True, kw_only=True)
class BufferedCounts:
    """Metrics of an environment, of which those of `names` are held back if an invocation has no others.

    At the environment's shutdown the caller must publish `take_all`.
    """

    names: frozenset[str]
    now_ms: NowMs
    _counts: Counter[str] = field(default_factory=Counter)
    _backlog: Backlog = field(default_factory=Backlog)

    def take_due(self, counts: Mapping[str, int]) -> Counter[str]:
        """Add an invocation's counts. Returns the counts to publish now."""
        self._counts.update(counts)
        now_ms = self.now_ms()
        if counts.keys() <= self.names and not self._backlog.is_due(now_ms):
            return Counter()
        self._backlog = Backlog(now_ms)
        return self.take_all()

    def take_all(self) -> Counter[str]:
        """Return and forget all counts that are held back."""
        counts, self._counts = self._counts, Counter()
        return counts


@dataclass(slots=True)
class Countries:
    """Looks up the countries of addresses in the database `file`.

    Without a file, and if a look-up fails, every country is unknown. The database is opened, and its library imported,
    by the first look-up, so that a start without look-ups isn't slowed.
    """

    file: str | None = None
    _reader: "Reader | None" = field(default=None, repr=False)

    def look_up(self, address: str) -> str:
        """Look up the two-letter country code. Returns `??` if the address is invalid or not in the database."""
        parsed = parse_address(address)
        if self.file is None or parsed is None:
            return UNKNOWN_COUNTRY
        try:
            if self._reader is None:
                import maxminddb  # noqa: PLC0415 - only where a file is configured: it is in no other bundle

                self._reader = maxminddb.open_database(self.file)
            return parse_country(self._reader.get(parsed))
        except Exception:  # noqa: BLE001 - a database of IPv4 alone asked for IPv6, or a damaged one: no client waits for that
            return UNKNOWN_COUNTRY


def parse_country(record: Any) -> str:
    """Find the country code in a record: `country.iso_code` of MaxMind and DB-IP, else `country_code` or `country`."""
    if not isinstance(record, dict):
        return UNKNOWN_COUNTRY
    country = record.get("country")
    code = country.get("iso_code") if isinstance(country, dict) else record.get("country_code", country)
    if not isinstance(code, str) or len(code) != CODE_CHARACTERS or not (code.isascii() and code.isalpha()):
        return UNKNOWN_COUNTRY
    return code.upper()
