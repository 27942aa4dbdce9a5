"""What is counted of rendezvous events, by Snowflake's names. Pure.

A count has a family and label values. What Prometheus reads grows for ever; the same counts of one UTC day, and how
many different addresses polled in it, make that day's log.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Counts with the same labels. A daily one isn't Prometheus's."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    rounded: bool = True
    daily: bool = False


PROXIES = Family(
    name="proxy_total", labels=("type", "nat", "cc"), meaning="The number of polls of proxies", rounded=False
)
POLLS = Family(
    name="rounded_proxy_poll_total",
    labels=("nat", "type", "status"),
    meaning="The number of proxy polls, rounded up to a multiple of 8",
)
ANSWERS = Family(
    name="rounded_proxy_answer_total",
    labels=("type", "status"),
    meaning="The number of proxy answers, rounded up to a multiple of 8",
)
WITH_RELAY_URL = Family(
    name="rounded_proxy_poll_with_relay_url_extension_total",
    labels=("nat", "type"),
    meaning="The number of proxy polls that name a relay pattern, rounded up to a multiple of 8",
)
WITHOUT_RELAY_URL = Family(
    name="rounded_proxy_poll_without_relay_url_extension_total",
    labels=("nat", "type"),
    meaning="The number of proxy polls that name no relay pattern, rounded up to a multiple of 8",
)
REJECTED = Family(
    name="rounded_proxy_poll_rejected_relay_url_extension_total",
    labels=("nat", "type"),
    meaning="The number of proxy polls rejected for their relay pattern, rounded up to a multiple of 8",
)
OFFERS = Family(
    name="rounded_client_poll_total",
    labels=("nat", "status", "cc", "rendezvous_method"),
    meaning="The number of client offers, rounded up to a multiple of 8",
)
ADDRESSES = Family(name="addresses", labels=("cc",), meaning="Addresses of proxies", rounded=False, daily=True)
ADDRESSES_BY_TYPE = Family(
    name="addresses_by_type", labels=("type",), meaning="Addresses of proxies", rounded=False, daily=True
)
ADDRESSES_BY_NAT = Family(
    name="addresses_by_nat", labels=("nat",), meaning="Addresses of proxies", rounded=False, daily=True
)

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
    """An event of a kind, or with an outcome, that Snowflake doesn't count is empty."""
    return Tally(event_id=event.id, day=day_of(event.at_ms), counts=tuple(_counts(event)), marks=tuple(_marks(event)))


def _counts(event: Event) -> Iterator[Count]:
    match event:
        case OfferEvent(outcome=status) if status in set(OfferOutcome):
            yield _count(OFFERS, event.nat, status, event.country, event.method)
        case AnswerEvent(outcome=status) if status in set(AnswerOutcome):
            yield _count(ANSWERS, _type(event), status)
        case PollEvent(outcome=status) if status in set(PollOutcome):
            yield _count(WITH_RELAY_URL if event.relay_extension else WITHOUT_RELAY_URL, event.nat, _type(event))
            if status == PollOutcome.REJECTED:
                yield _count(REJECTED, event.nat, _type(event))
                return
            yield _count(POLLS, event.nat, _type(event), status)
            yield _count(PROXIES, _type(event), event.nat, event.country)


def _marks(event: Event) -> Iterator[Mark]:
    """As Snowflake: an address counts once, once for each NAT, and once for each type; rejected polls don't."""
    if not isinstance(event, PollEvent) or event.address is None:
        return
    if event.outcome not in {PollOutcome.IDLE, PollOutcome.MATCHED}:
        return
    for family, value in (
        (ADDRESSES, event.country),
        (ADDRESSES_BY_NAT, event.nat),
        (ADDRESSES_BY_TYPE, _type(event)),
    ):
        count = _count(family, value)
        name = event.address if family is ADDRESSES else "/".join((event.address, *family.labels, *count.values))
        yield Mark(name, count)


def _type(event: Event) -> str:
    return event.proxy_type or UNKNOWN_TYPE


def _count(family: Family, *values: str) -> Count:
    return Count(family.name, tuple(value if _LABEL_VALUE.fullmatch(value) else _ODD for value in values))


def total(counts: Mapping[Count, int], family: Family, **wanted: str) -> int:
    """The sum of a family's counts whose labels have these values."""
    return sum(number for labels, number in labelled(counts, family) if wanted.items() <= labels.items())


def by_label(counts: Mapping[Count, int], family: Family, label: str, **wanted: str) -> Counter[str]:
    """The same sums, by the values of one label."""
    found: Counter[str] = Counter()
    for labels, number in labelled(counts, family):
        if wanted.items() <= labels.items():
            found[labels[label]] += number
    return found


def labelled(counts: Mapping[Count, int], family: Family) -> Iterator[tuple[Mapping[str, str], int]]:
    """A family's counts with their labels, in order of the labels' values."""
    for count, number in sorted(counts.items()):
        if count.family == family.name:
            yield dict(zip(family.labels, count.values, strict=True)), number


def rounded_up(number: int) -> int:
    """To the next multiple of 8, so that nobody's coming or going shows."""
    return -(-number // ROUND_TO) * ROUND_TO
