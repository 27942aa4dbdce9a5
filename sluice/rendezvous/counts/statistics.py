"""What is counted of rendezvous events, by Snowflake's names. Pure.

A count has a family and label values. What Prometheus reads grows for ever; the same counts of one UTC day, and how
many different addresses polled in it, make that day's log.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from sluice.rendezvous.counts.events import (
    UNKNOWN_TYPE,
    AnswerEvent,
    AnswerOutcome,
    Event,
    OfferEvent,
    OfferOutcome,
    PollEvent,
    PollOutcome,
)
from sluice.times import day_of

ROUND_TO = 8
# Events come from whoever publishes to the exchange, and a label's values stand in the pages that we serve.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9_?-]{1,32}", re.ASCII)
_ODD = "unknown"


@dataclass(frozen=True, slots=True)
class Family:
    """Counts with the same labels. A daily one isn't Prometheus's."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    _: KW_ONLY
    rounded: bool = True
    daily: bool = False


_ROUNDED = ", rounded up to a multiple of 8"
_POLLS = "The number of proxy polls"

PROXIES = Family("proxy_total", ("type", "nat", "cc"), "The number of polls of proxies", rounded=False)
POLLS = Family("rounded_proxy_poll_total", ("nat", "type", "status"), _POLLS + _ROUNDED)
ANSWERS = Family("rounded_proxy_answer_total", ("type", "status"), "The number of proxy answers" + _ROUNDED)
WITH_RELAY_URL = Family(
    "rounded_proxy_poll_with_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} that name a relay pattern{_ROUNDED}",
)
WITHOUT_RELAY_URL = Family(
    "rounded_proxy_poll_without_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} that name no relay pattern{_ROUNDED}",
)
REJECTED = Family(
    "rounded_proxy_poll_rejected_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} rejected for their relay pattern{_ROUNDED}",
)
OFFERS = Family(
    "rounded_client_poll_total",
    ("nat", "status", "cc", "rendezvous_method"),
    "The number of client offers" + _ROUNDED,
)
ADDRESSES = Family("addresses", ("cc",), "Addresses of proxies", rounded=False, daily=True)
ADDRESSES_BY_TYPE = Family("addresses_by_type", ("type",), "Addresses of proxies", rounded=False, daily=True)
ADDRESSES_BY_NAT = Family("addresses_by_nat", ("nat",), "Addresses of proxies", rounded=False, daily=True)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(PROXIES, POLLS, ANSWERS, WITH_RELAY_URL, WITHOUT_RELAY_URL, REJECTED, OFFERS),
        *(ADDRESSES, ADDRESSES_BY_TYPE, ADDRESSES_BY_NAT),
    )
}


class Count(NamedTuple):
    """What is counted: a family's name, and values in the order of its labels."""

    family: str
    values: tuple[str, ...]


Counts = Counter[Count]


@dataclass(frozen=True, slots=True)
class Mark:
    """The first of these in a day counts, and no other. `name` has an address's hash, never the address."""

    name: str
    count: Count


@dataclass(frozen=True, slots=True)
class Tally:
    """What one event counts as, on its day."""

    event_id: str
    day: str
    counts: tuple[Count, ...]
    marks: tuple[Mark, ...] = ()


def tally(event: Event) -> Tally:
    """Say what an event counts as: nothing, where Snowflake doesn't count its kind or its outcome.

    As Snowflake's, an address counts once, once for each NAT, and once for each type; those of rejected polls don't.
    """
    counts: list[Count] = []
    marks: list[Mark] = []
    type_ = event.proxy_type or UNKNOWN_TYPE
    match event:
        case OfferEvent(outcome=status) if status in set(OfferOutcome):
            counts.append(_count(OFFERS, event.nat, status, event.country, event.method))
        case AnswerEvent(outcome=status) if status in set(AnswerOutcome):
            counts.append(_count(ANSWERS, type_, status))
        case PollEvent(outcome=status) if status in set(PollOutcome):
            extended = WITH_RELAY_URL if event.relay_extension else WITHOUT_RELAY_URL
            counts.append(_count(extended, event.nat, type_))
            if status == PollOutcome.REJECTED:
                counts.append(_count(REJECTED, event.nat, type_))
            else:
                counts.append(_count(POLLS, event.nat, type_, status))
                counts.append(_count(PROXIES, type_, event.nat, event.country))
                marks += _marks(event, type_)
    return Tally(event_id=event.id, day=day_of(event.at_ms), counts=tuple(counts), marks=tuple(marks))


def _marks(event: PollEvent, type_: str) -> Iterator[Mark]:
    if event.address is None:
        return
    yield Mark(event.address, _count(ADDRESSES, event.country))
    for family, value in ((ADDRESSES_BY_NAT, event.nat), (ADDRESSES_BY_TYPE, type_)):
        count = _count(family, value)
        yield Mark("/".join((event.address, *family.labels, *count.values)), count)


def _count(family: Family, *values: str) -> Count:
    return Count(family.name, tuple(value if _LABEL_VALUE.fullmatch(value) else _ODD for value in values))


def total(counts: Mapping[Count, int], family: Family, **wanted: str) -> int:
    """Sum up a family's counts whose labels have these values."""
    return sum(number for labels, number in labelled(counts, family) if wanted.items() <= labels.items())


def by_label(counts: Mapping[Count, int], family: Family, label: str, **wanted: str) -> Counter[str]:
    """Sum up the same, by the values of one label."""
    found: Counter[str] = Counter()
    for labels, number in labelled(counts, family):
        if wanted.items() <= labels.items():
            found[labels[label]] += number
    return found


def labelled(counts: Mapping[Count, int], family: Family) -> Iterator[tuple[Mapping[str, str], int]]:
    """Go through a family's counts with their labels, in order of the labels' values."""
    for count, number in sorted(counts.items()):
        if count.family == family.name:
            yield dict(zip(family.labels, count.values, strict=True)), number


def rounded_up(number: int) -> int:
    """Round to the next multiple of 8, so that nobody's coming or going shows."""
    return -(-number // ROUND_TO) * ROUND_TO
