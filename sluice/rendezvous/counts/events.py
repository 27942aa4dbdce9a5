"""Events: the outcomes of offers, polls and answers, as messages for the site's events exchange. Pure.

Each is a JSON object with the routing key `rendezvous.<kind>.<outcome>.<country>`. No event contains an address: a poll
has the hash of its proxy's address, with a key that changes daily. An event's id is derived from its offer, poll or
answer, so a repeated event has the same id. Several polls with the same outcome may share one event.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sluice.codec import convert
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.times import format_day, format_time, parse_time_ms
from sluice.ulids import derive_ulid

TOPIC = "rendezvous"
UNKNOWN_TYPE = "unknown"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every kind of event. `trace` is the function's X-Ray trace header. `outcome` is any text."""

    kind: ClassVar[str]

    id: str  # the event's ULID
    at_ms: int
    outcome: str
    nat: str = "unknown"
    country: str = UNKNOWN_COUNTRY
    proxy_type: str | None = None
    trace: str | None = None

    @property
    def routing_key(self) -> str:
        """Return the routing key, which a topic exchange compares with its bindings."""
        return f"{TOPIC}.{self.kind}.{self.outcome}.{self.country}"

    @property
    def attributes(self) -> Mapping[str, str]:
        """Return the event's message attributes, which filters of a split queue can match."""
        return {"kind": self.kind, "outcome": self.outcome, "country": self.country}

    def to_json(self, *, site: str) -> str:
        """Write the message's body with all fields; `at_ms` is named `at`. `site` is the tag of the event's site."""
        common = {"kind": self.kind, "id": self.id, "at": format_time(self.at_ms), "site": site, "trace": self.trace}
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _WRITTEN_FIRST}
        alone = {name for name, value in _SINGLE_POLL_VALUES.items() if values.get(name) == value}
        document = common | {name: value for name, value in values.items() if name not in alone}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


_SINGLE_POLL_VALUES: Mapping[str, object] = {"polls": 1, "addresses": ()}  # Events about one poll omit these values.
_WRITTEN_FIRST = frozenset({"id", "at_ms", "trace"})  # `to_json` writes these fields itself, before the others.


class OfferEvent(Event, frozen=True, kw_only=True):
    """The end of an offer. `waited_ms` counts from the sending of the offer. `proxy_type` is its proxy's type."""

    kind = "offer"

    method: str
    waited_ms: int = 0


class PollEvent(Event, frozen=True, kw_only=True):
    """The end of a poll, or of several polls of one day with the same outcome.

    `relay_extension`: the poll named a relay pattern. `address` is the keyed hash of the proxy's address. For several
    polls, `addresses` has the different hashes, and `clients` and `waited_ms` are sums.
    """

    kind = "poll"

    clients: int = 0
    relay_extension: bool = False
    waited_ms: int = 0
    address: str | None = None
    polls: Annotated[int, Meta(ge=1)] = 1
    addresses: tuple[str, ...] = ()

    @property
    def all_addresses(self) -> tuple[str, ...]:
        """Return the different address hashes of all polls in this event."""
        return self.addresses if self.address is None else tuple(dict.fromkeys((self.address, *self.addresses)))


class AnswerEvent(Event, frozen=True, kw_only=True):
    """The end of an answer. If no client waited for the answer, its proxy is unknown."""

    kind = "answer"


def derive_event_id(kind: str, name: str, *, at_ms: int) -> str:
    """Derive the id of the event of this kind about the offer, poll or answer `name`, which began at this time."""
    return derive_ulid(f"{kind}/{name}", sent_at_ms=at_ms)


def combine_polls(polls: Iterable[PollEvent]) -> Sequence[PollEvent]:
    """Combine poll events with the same outcome into one event, with the first poll's id, time and trace.

    Combined polls have the same day, outcome, NAT, type and country, and all or none of them named a relay pattern.
    Events are returned in order of their times.
    """
    sums: dict[tuple[object, ...], PollEvent] = {}
    for poll in polls:
        labels = (poll.outcome, poll.nat, poll.proxy_type, poll.country, poll.relay_extension)
        alike = (format_day(poll.at_ms), *labels)
        before = sums.get(alike)
        if before is None:
            sums[alike] = poll
            continue
        sums[alike] = replace(
            before,
            clients=before.clients + poll.clients,
            waited_ms=before.waited_ms + poll.waited_ms,
            address=None,
            polls=before.polls + poll.polls,
            addresses=tuple(dict.fromkeys((*before.all_addresses, *poll.all_addresses))),
        )
    return list(sums.values())


_KINDS: Mapping[str, type[Event]] = {kind.kind: kind for kind in (OfferEvent, PollEvent, AnswerEvent)}


def parse_event(document: Mapping[str, Any]) -> Event | None:
    """Parse an event's JSON object, ignoring unknown fields. Returns None for an unknown kind. Raises `Malformed`."""
    kind = _KINDS.get(str(document.get("kind")))
    if kind is None:
        return None
    fields = {name: value for name, value in document.items() if value is not None}
    return convert(fields | {"at_ms": parse_time_ms(str(fields.get("at")))}, kind, of="an event")
