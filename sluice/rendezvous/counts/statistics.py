"""Statistics of rendezvous events, under Snowflake's names. Pure.

A count is named by the code of its family and its label values, such as `a|webext|success`. Prometheus reads totals
since the deployment. The log of a UTC day has that day's counts, and the number of different addresses that polled. All
counts of one event are stored in one row, so an event costs one write, however many families count it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from sluice.rendezvous.counts.events import UNKNOWN_TYPE, Event, OfferEvent, PollEvent
from sluice.rendezvous.protocol.ends import End, list_outcomes
from sluice.times import format_day

ROUND_TO = 8
# Pages and stored names contain label values without escaping, so label values have only these characters.
_LABEL_VALUE = re.compile(r"[A-Za-z0-9_?-]{1,32}", re.ASCII)
_UNKNOWN_VALUE = "unknown"
SEPARATOR = "|"  # This character separates label values and never occurs in a label value.
MAX_ADDRESS = 128  # Longer hashes are rejected; this program's hashes have 32 characters.


class Family(msgspec.Struct, frozen=True):
    """A family of counts with the same labels. `code` is the family's short name in stored rows.

    Families without a `meaning` are counted only by day, and Prometheus doesn't read them.
    """

    code: str
    name: str
    labels: tuple[str, ...]
    meaning: str = ""

    @property
    def is_rounded(self) -> bool:
        """Return whether Prometheus reads rounded counts of this family."""
        return self.name.startswith("rounded_")

    def build_count_name(self, *values: str | None) -> str:
        """Return the name of the count with these label values. Values with special characters become `unknown`."""
        return SEPARATOR.join((self.code, *map(_clean_label_value, values)))


PROXIES = Family("i", "proxy_total", ("type", "nat", "cc"), "Addresses of proxies, each once a day")
POLLS = Family("p", "rounded_proxy_poll_total", ("nat", "type", "status"), "The number of proxy polls")
ANSWERS = Family("a", "rounded_proxy_answer_total", ("type", "status"), "The number of proxy answers")
WITH_RELAY_URL = Family(
    "w",
    "rounded_proxy_poll_with_relay_url_extension_total",
    ("nat", "type"),
    "The number of proxy polls that name a relay pattern",
)
WITHOUT_RELAY_URL = Family(
    "o",
    "rounded_proxy_poll_without_relay_url_extension_total",
    ("nat", "type"),
    "The number of proxy polls that name no relay pattern",
)
REJECTED = Family(
    "r",
    "rounded_proxy_poll_rejected_relay_url_extension_total",
    ("nat", "type"),
    "The number of proxy polls rejected for their relay pattern",
)
OFFERS = Family(
    "c", "rounded_client_poll_total", ("nat", "status", "cc", "rendezvous_method"), "The number of client offers"
)
ADDRESSES_BY_TYPE = Family("dt", "addresses_by_type", ("type",))
ADDRESSES_BY_NAT = Family("dn", "addresses_by_nat", ("nat",))

FAMILIES: Mapping[str, Family] = {
    family.code: family
    for family in (
        *(PROXIES, POLLS, ANSWERS, WITH_RELAY_URL, WITHOUT_RELAY_URL, REJECTED, OFFERS),
        *(ADDRESSES_BY_TYPE, ADDRESSES_BY_NAT),
    )
}

Counts = Counter[str]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The counts that one event adds to one row of its day.

    `marks` maps marks to the names of counts of different addresses. For each of the `addresses` (keyed hashes) without
    a mark on this day, the mark's count is raised by one.
    """

    day: str
    row: str
    counts: Counts
    addresses: tuple[str, ...] = ()
    marks: Mapping[str, str] = msgspec.field(default_factory=dict)


def tally(event: Event) -> Tally | None:
    """Count an event. Returns None if Snowflake doesn't count events of this kind or outcome.

    As in Snowflake, an address counts once in all, once for each NAT, and once for each type. Rejected polls count no
    addresses.
    """
    if event.outcome not in list_outcomes(event.kind):
        return None
    day, nat, status = format_day(event.at_ms), event.nat, event.outcome
    if isinstance(event, OfferEvent):
        count = OFFERS.build_count_name(nat, status, event.country, event.method)
        return Tally(day=day, row=_join_labels(event.method, event.country), counts=Counter({count: 1}))
    # Snowflake's broker doesn't know the proxy of a late answer either.
    type_ = None if status == End.ANSWER_TOO_LATE.event else event.proxy_type or UNKNOWN_TYPE
    row = _join_labels(type_, event.country)
    if not isinstance(event, PollEvent):
        return Tally(day=day, row=row, counts=Counter({ANSWERS.build_count_name(type_, status): 1}))
    counted = [(WITH_RELAY_URL if event.relay_extension else WITHOUT_RELAY_URL).build_count_name(nat, type_)]
    if status == End.POLL_REFUSED.event:
        counted.append(REJECTED.build_count_name(nat, type_))
        return Tally(day=day, row=row, counts=Counter(dict.fromkeys(counted, event.polls)))
    counted.append(POLLS.build_count_name(nat, type_, status))
    by_nat, by_type = ADDRESSES_BY_NAT.build_count_name(nat), ADDRESSES_BY_TYPE.build_count_name(type_)
    return Tally(
        day=day,
        row=row,
        counts=Counter(dict.fromkeys(counted, event.polls)),
        addresses=tuple(address for address in event.all_addresses if 0 < len(address) <= MAX_ADDRESS),
        marks={PROXIES.code: PROXIES.build_count_name(type_, nat, event.country), by_nat: by_nat, by_type: by_type},
    )


def _join_labels(*values: str | None) -> str:
    return SEPARATOR.join(map(_clean_label_value, values))


def _clean_label_value(value: str | None) -> str:
    return "" if value is None else value if _LABEL_VALUE.fullmatch(value) else _UNKNOWN_VALUE


def total(counts: Mapping[str, int], family: Family, **wanted: str) -> int:
    """Return the sum of a family's counts with these label values."""
    return sum(number for labels, number in iterate_labels(counts, family) if wanted.items() <= labels.items())


def sum_by_label(counts: Mapping[str, int], family: Family, label: str, **wanted: str) -> Counter[str]:
    """Sum a family's counts with the `wanted` label values, separately for each value of one label."""
    sums: Counter[str] = Counter()
    for labels, number in iterate_labels(counts, family):
        if wanted.items() <= labels.items():
            sums[labels[label]] += number
    return sums


def iterate_labels(counts: Mapping[str, int], family: Family) -> Iterator[tuple[Mapping[str, str], int]]:
    """Yield a family's counts with their labels, sorted by label values. Skips counts with another version's labels."""
    for (code, *values), number in sorted((name.split(SEPARATOR), number) for name, number in counts.items()):
        if code == family.code and len(values) == len(family.labels):
            yield dict(zip(family.labels, values, strict=True)), number


def round_up(number: int) -> int:
    """Round up to a multiple of 8, so that nobody can recognize single clients in the statistics."""
    return -(-number // ROUND_TO) * ROUND_TO
