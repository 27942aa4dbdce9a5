"""Statistics of rendezvous events, under Snowflake's names. Pure.

A count has a family and label values. Prometheus reads totals since the deployment; the day's log has the counts of one
UTC day, and the number of different addresses that polled in it. Counts are stored in rows, so that all counts of one
event are in one row, whatever the number of families, methods and countries.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from sluice.rendezvous.counts.events import UNKNOWN_TYPE, Event, OfferEvent, PollEvent
from sluice.rendezvous.protocol.ends import End, list_outcomes
from sluice.times import format_day

ROUND_TO = 8
# Anyone who may publish to the exchange can send events, and the pages show label values, so these are restricted.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9_?-]{1,32}", re.ASCII)
_ODD = "unknown"
SEPARATOR = "|"  # separates label values, which never contain it
MAX_ADDRESS = 128  # characters of an accepted hash; this program's hashes have 32


class RowKind(StrEnum):
    """The kind of a stored row of counts: of offers or of proxies."""

    OFFERS = "offers"
    PROXIES = "proxies"


ROW_LABELS: Mapping[RowKind, tuple[str, ...]] = {
    RowKind.OFFERS: ("rendezvous_method", "cc"),
    RowKind.PROXIES: ("type", "cc"),
}


class Family(msgspec.Struct, frozen=True):
    """A family of counts with the same labels.

    Prometheus doesn't read `daily` ones. `code` is the short name in stored rows; a family without one isn't stored.
    """

    name: str
    labels: tuple[str, ...]
    meaning: str
    code: str = ""
    row: RowKind = RowKind.PROXIES
    rounded: bool = True
    daily: bool = False

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Return the labels that the row's name doesn't have."""
        return tuple(label for label in self.labels if label not in ROW_LABELS[self.row])


_ROUNDED = ", rounded up to a multiple of 8"
_POLLS = "The number of proxy polls"

_ADDRESSES = "Addresses of proxies"
PROXIES = Family("proxy_total", ("type", "nat", "cc"), f"{_ADDRESSES}, each once a day", code="i", rounded=False)
POLLS = Family("rounded_proxy_poll_total", ("nat", "type", "status"), _POLLS + _ROUNDED, code="p")
ANSWERS = Family("rounded_proxy_answer_total", ("type", "status"), "The number of proxy answers" + _ROUNDED, code="a")
WITH_RELAY_URL = Family(
    "rounded_proxy_poll_with_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} that name a relay pattern{_ROUNDED}",
    code="w",
)
WITHOUT_RELAY_URL = Family(
    "rounded_proxy_poll_without_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} that name no relay pattern{_ROUNDED}",
    code="o",
)
REJECTED = Family(
    "rounded_proxy_poll_rejected_relay_url_extension_total",
    ("nat", "type"),
    f"{_POLLS} rejected for their relay pattern{_ROUNDED}",
    code="r",
)
OFFERS = Family(
    "rounded_client_poll_total",
    ("nat", "status", "cc", "rendezvous_method"),
    "The number of client offers" + _ROUNDED,
    code="c",
    row=RowKind.OFFERS,
)
ADDRESSES = Family("addresses", ("cc",), _ADDRESSES, code="d", rounded=False, daily=True)
ADDRESSES_BY_TYPE = Family("addresses_by_type", ("type",), _ADDRESSES, code="dt", rounded=False, daily=True)
ADDRESSES_BY_NAT = Family("addresses_by_nat", ("nat",), _ADDRESSES, code="dn", rounded=False, daily=True)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(PROXIES, POLLS, ANSWERS, WITH_RELAY_URL, WITHOUT_RELAY_URL, REJECTED, OFFERS),
        *(ADDRESSES, ADDRESSES_BY_TYPE, ADDRESSES_BY_NAT),
    )
}

_BY_CODE = {family.code: family for family in FAMILIES.values()}


class Count(NamedTuple):
    """The key of a count: its family's name, and label values in the order of the family's labels."""

    family: str
    values: tuple[str, ...]


Counts = Counter[Count]


class Row(NamedTuple):
    """Counts that are stored together: their kind, and the values of their common labels."""

    kind: RowKind
    values: tuple[str, ...]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The counts that one event adds to one row of its day.

    `marks` are counts of different addresses, by name: each adds one for each of the `addresses` (keyed hashes) that it
    hasn't counted on this day.
    """

    day: str
    row: Row
    counts: Counts
    addresses: tuple[str, ...] = ()
    marks: Mapping[str, Count] = msgspec.field(default_factory=dict)


def tally(event: Event) -> Tally | None:
    """Count an event. Returns None if Snowflake doesn't count its kind or its outcome.

    As in Snowflake, an address counts once, once for each NAT, and once for each type. Rejected polls count no
    addresses.
    """
    if event.outcome not in list_outcomes(event.kind):
        return None
    day, type_, status = format_day(event.at_ms), event.proxy_type or UNKNOWN_TYPE, event.outcome
    if isinstance(event, OfferEvent):
        count = _count(OFFERS, event.nat, status, event.country, event.method)
        return Tally(day=day, row=_build_row(RowKind.OFFERS, event.method, event.country), counts=Counter({count: 1}))
    if not isinstance(event, PollEvent):
        # Snowflake's broker, too, no longer knows the proxy of a late answer.
        known_type = None if status == End.ANSWER_TOO_LATE.event else type_
        row = _build_row(RowKind.PROXIES, known_type, event.country)
        return Tally(day=day, row=row, counts=Counter({_count(ANSWERS, known_type, status): 1}))
    row = _build_row(RowKind.PROXIES, type_, event.country)
    counted = [_count(WITH_RELAY_URL if event.relay_extension else WITHOUT_RELAY_URL, event.nat, type_)]
    if status == End.POLL_REFUSED.event:
        counted.append(_count(REJECTED, event.nat, type_))
        return Tally(day=day, row=row, counts=Counter(dict.fromkeys(counted, event.polls)))
    counted.append(_count(POLLS, event.nat, type_, status))
    by_nat, by_type = _count(ADDRESSES_BY_NAT, event.nat), _count(ADDRESSES_BY_TYPE, type_)
    marks = {SEPARATOR.join((FAMILIES[count.family].code, *count.values)): count for count in (by_nat, by_type)}
    marks[PROXIES.code] = _count(PROXIES, type_, event.nat, event.country)
    return Tally(
        day=day,
        row=row,
        counts=Counter(dict.fromkeys(counted, event.polls)),
        addresses=tuple(address for address in event.all_addresses if 0 < len(address) <= MAX_ADDRESS),
        marks={ADDRESSES.code: _count(ADDRESSES, event.country)} | marks,
    )


def _count(family: Family, *values: str | None) -> Count:
    return Count(family.name, tuple(map(_label_value, values)))


def _build_row(kind: RowKind, *values: str | None) -> Row:
    return Row(kind, tuple(map(_label_value, values)))


def _label_value(value: str | None) -> str:
    return "" if value is None else value if _LABEL_VALUE.fullmatch(value) else _ODD


def row_name(row: Row) -> str:
    """Return a row's name, such as `proxies|webext|DE`."""
    return SEPARATOR.join((row.kind, *row.values))


def count_name(count: Count) -> str:
    """Return a count's name in its row: the family's code and the values of the labels that the row's name lacks."""
    family = FAMILIES[count.family]
    values = dict(zip(family.labels, count.values, strict=True))
    return SEPARATOR.join((family.code, *(values[label] for label in family.own_labels)))


def parse_row(name: str, numbers: Mapping[str, int]) -> Counts:
    """Parse a row from its name and its counts by name. Unknown names, as of a newer version, are skipped."""
    kind, *values = name.split(SEPARATOR)
    counts: Counts = Counter()
    if kind not in set(RowKind) or len(values) != len(ROW_LABELS[RowKind(kind)]):
        return counts
    of_all = dict(zip(ROW_LABELS[RowKind(kind)], values, strict=True))
    for written, number in numbers.items():
        code, *own = written.split(SEPARATOR)
        family = _BY_CODE.get(code)
        if family is not None and family.row == kind and len(own) == len(family.own_labels):
            labels = of_all | dict(zip(family.own_labels, own, strict=True))
            counts[Count(family.name, tuple(labels[label] for label in family.labels))] += number
    return counts


def total(counts: Mapping[Count, int], family: Family, **wanted: str) -> int:
    """Sum the counts of a family whose labels have these values."""
    return sum(number for labels, number in iterate_labels(counts, family) if wanted.items() <= labels.items())


def by_label(counts: Mapping[Count, int], family: Family, label: str, **wanted: str) -> Counter[str]:
    """Sum the counts of a family whose labels have the `wanted` values, by the values of one label."""
    sums: Counter[str] = Counter()
    for labels, number in iterate_labels(counts, family):
        if wanted.items() <= labels.items():
            sums[labels[label]] += number
    return sums


def iterate_labels(counts: Mapping[Count, int], family: Family) -> Iterator[tuple[Mapping[str, str], int]]:
    """Yield a family's counts with their labels, in order of the labels' values."""
    for count, number in sorted(counts.items()):
        if count.family == family.name:
            yield dict(zip(family.labels, count.values, strict=True)), number


def round_up(number: int) -> int:
    """Round up to a multiple of 8, so that single clients can't be recognized."""
    return -(-number // ROUND_TO) * ROUND_TO
