"""Records the outcomes of polls and answers, and publishes them after the invocation's work.

Events of offers aren't recorded here: the update that stores an offer's end becomes its event (`counts.stream`), so
each offer has exactly one. Polls are frequent and mostly have the same outcome, so an environment publishes them at
most once per `MAX_BUFFERED_MS`, combined by outcome, together with their invocations' metrics.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.codec import pick_shared_fields
from sluice.rendezvous.counts.events import (
    UNKNOWN_TYPE,
    AnswerEvent,
    Event,
    PollEvent,
    combine_polls,
    derive_event_id,
)
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY, parse_address
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Profile
from sluice.rendezvous.protocol.messages import Poll
from sluice.times import NowMs

if TYPE_CHECKING:
    from maxminddb import Reader

NOT_PUBLISHED = "EventsNotPublished"  # This is the name of a metric and of log entries.
MAX_BUFFERED_MS = 20_000
MAX_BUFFERED_POLLS = 2_000  # The addresses of this many polls (70 KB) fit in one event.
CODE_CHARACTERS = 2  # Country codes have this length.


class EventRecorder(msgspec.Struct, kw_only=True):
    """Records the events and metrics of an environment's invocations, and publishes them.

    `hash_address` and `look_up_country` take an address, which is never stored. `publisher` publishes events, returns
    the number of lost events, and never raises. Without a publisher, events are discarded. If all metrics of an
    invocation are in `buffered_metrics`, a later invocation may publish them.
    """

    look_up_country: Callable[[str], str]
    hash_address: Callable[[str], str | None]
    trace: Callable[[], str | None]
    now_ms: NowMs
    new_id: Callable[[], str]
    publisher: Callable[[Sequence[Event]], int] | None = None
    buffered_metrics: frozenset[str] = frozenset()
    _events: list[Event] = msgspec.field(default_factory=list)
    _metrics: Counter[str] = msgspec.field(default_factory=Counter)
    _published_at_ms: int = -MAX_BUFFERED_MS  # The first invocation publishes at once.

    def take_events(self) -> Sequence[Event]:
        """Remove and return all recorded events, with polls combined. The caller must publish the events."""
        taken, self._events = self._events, []
        others = [event for event in taken if not isinstance(event, PollEvent)]
        return (*others, *combine_polls(event for event in taken if isinstance(event, PollEvent)))

    def publish(self, metrics: Iterable[str] = (), *, at_shutdown: bool = False) -> Counter[str]:
        """Publish the recorded events at the end of an invocation, if due, or at the environment's shutdown.

        Returns the metrics to publish now: those of this and earlier invocations, and the number of lost events.
        Returns none if all metrics may be published later.
        """
        self._metrics.update(metrics)
        now_ms = self.now_ms()
        is_due = at_shutdown or now_ms - self._published_at_ms >= MAX_BUFFERED_MS
        if is_due or len(self._events) >= MAX_BUFFERED_POLLS:
            self._published_at_ms = now_ms
            events = self.take_events()
            lost = self.publisher(events) if self.publisher and events else 0
            self._metrics.update({NOT_PUBLISHED: lost} if lost else {})
        elif self._metrics.keys() <= self.buffered_metrics:
            return Counter()
        taken, self._metrics = self._metrics, Counter()
        return taken

    def build_profile(self, poll: Poll, *, address: str) -> Profile:
        """Build the profile of a poll for its event. `address` is the proxy's address."""
        return Profile(
            type=poll.type,
            nat=poll.nat,
            country=self.look_up_country(address),
            address=self.hash_address(address),
            relay_extension=poll.relay_pattern is not None,
            trace=self.trace() or None,
        )

    def record_poll(self, poll: Poll, profile: Profile, end: End, *, polled_at_ms: int) -> None:
        """Record the end of a poll. A later invocation may publish it, combined with other polls."""
        now_ms = self.now_ms()
        self._events.append(
            PollEvent(
                **pick_shared_fields(profile, PollEvent),
                id=derive_event_id(PollEvent.kind, self.new_id(), at_ms=polled_at_ms),
                at_ms=now_ms,
                outcome=end.event,
                proxy_type=profile.type,
                clients=poll.clients,
                waited_ms=now_ms - polled_at_ms,
            )
        )

    def record_late_answer(self, *, address: str) -> None:
        """Record an answer for which no client waits."""
        now_ms = self.now_ms()
        self._events.append(
            AnswerEvent(
                id=derive_event_id(AnswerEvent.kind, self.new_id(), at_ms=now_ms),
                at_ms=now_ms,
                outcome=End.ANSWER_TOO_LATE.event,
                country=self.look_up_country(address),
                proxy_type=UNKNOWN_TYPE,  # The answer doesn't identify its proxy.
                trace=self.trace() or None,
            )
        )


@dataclass(slots=True)
class Countries:
    """Looks up the countries of addresses in the database `file`.

    Without a file, or if a look-up fails, the country is unknown. The first look-up imports the library and opens the
    database, so that other environments start faster.
    """

    file: str | None = None
    _reader: "Reader | None" = field(default=None, repr=False)

    def look_up(self, address: str) -> str:
        """Look up the two-letter country code. Returns `??` if the address is invalid or isn't in the database."""
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
    """Find the country code in a database record: `country.iso_code`, else `country_code` or `country`."""
    if not isinstance(record, dict):
        return UNKNOWN_COUNTRY
    country = record.get("country")
    code = country.get("iso_code") if isinstance(country, dict) else record.get("country_code", country)
    if not isinstance(code, str) or len(code) != CODE_CHARACTERS or not (code.isascii() and code.isalpha()):
        return UNKNOWN_COUNTRY
    return code.upper()
