"""Writes the statistics pages in the format of Snowflake's broker: a day's log, and a page for Prometheus. Pure.

Numbers of clients and polls are rounded up to a multiple of 8; numbers of proxies' addresses are exact. The page for
Prometheus has the text format, version 0.0.4.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from sluice.rendezvous.counts.events import UNKNOWN_TYPE
from sluice.rendezvous.counts.statistics import (
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    FAMILIES,
    OFFERS,
    POLLS,
    PROXIES,
    REJECTED,
    ROUND_TO,
    WITH_RELAY_URL,
    WITHOUT_RELAY_URL,
    Family,
    iterate_labels,
    round_up,
    sum_by_label,
    total,
)
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.matching import Nat, OfferMethod
from sluice.times import DAY_MS, format_day, parse_day_ms

DAY_S = DAY_MS // 1000
TYPES = ("iptproxy", "standalone", "webext", "badge", "bloco")  # All other types count only in the total.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAMESPACE = "snowflake"
AVAILABLE = Family("", "available_proxies", ("type", "nat"), "The number of proxies that wait for a client")
ROUNDED = f", rounded up to a multiple of {ROUND_TO}"
NEWER_NATS = (Nat.OPEN, Nat.MODERATE, Nat.STRICT)
NATS = (Nat.RESTRICTED, Nat.UNRESTRICTED, Nat.UNKNOWN, *NEWER_NATS)


def write_daily_log(day: str, counts: Mapping[str, int]) -> str:
    """Write the log of one UTC day, such as `2026-11-21`. The log names the end of that day. Raises `Malformed`."""
    return "".join(f"{line}\n" for line in _format_lines(day, counts))


def _format_lines(day: str, counts: Mapping[str, int]) -> Iterator[str]:
    yield f"snowflake-stats-end {format_day(parse_day_ms(day) + DAY_MS)} 00:00:00 ({DAY_S} s)"
    # If no countries were counted, the line ends in a space, as in Snowflake's log.
    yield f"snowflake-ips {_format_countries(sum_by_label(counts, PROXIES, 'cc'))}"
    for type_ in TYPES:
        yield f"snowflake-ips-{type_} {total(counts, ADDRESSES_BY_TYPE, type=type_)}"
    yield f"snowflake-ips-total {total(counts, PROXIES)}"
    yield f"snowflake-idle-count {round_up(total(counts, POLLS, status=End.POLL_IDLE.event))}"
    yield f"snowflake-proxy-poll-with-relay-url-count {round_up(total(counts, WITH_RELAY_URL))}"
    yield f"snowflake-proxy-poll-without-relay-url-count {round_up(total(counts, WITHOUT_RELAY_URL))}"
    yield f"snowflake-proxy-rejected-for-relay-url-count {round_up(total(counts, REJECTED))}"
    denied = sum_by_label(counts, OFFERS, "nat", status=End.OFFER_DENIED.event)
    unrestricted = denied[Nat.UNRESTRICTED] + denied[Nat.OPEN]
    yield f"client-denied-count {round_up(denied.total())}"
    # Snowflake counts a client with unknown NAT as restricted.
    yield f"client-restricted-denied-count {round_up(denied.total() - unrestricted)}"
    yield f"client-unrestricted-denied-count {round_up(unrestricted)}"
    for nat in NEWER_NATS:
        yield f"client-nat-{nat}-denied-count {round_up(denied[nat])}"
    yield f"client-snowflake-match-count {round_up(total(counts, OFFERS, status=End.OFFER_MATCHED.event))}"
    yield f"client-snowflake-timeout-count {round_up(total(counts, OFFERS, status=End.OFFER_TIMED_OUT.event))}"
    for method in (OfferMethod.HTTP, OfferMethod.AMP_CACHE, OfferMethod.SQS):
        countries = sum_by_label(counts, OFFERS, "cc", rendezvous_method=method)
        yield f"client-{method}-count {round_up(countries.total())}"
        yield f"client-{method}-ips {_format_countries(countries, shown=round_up)}"
    for nat in NATS:
        yield f"snowflake-ips-nat-{nat} {total(counts, ADDRESSES_BY_NAT, nat=nat)}"


def _format_countries(counts: Counter[str], *, shown: Callable[[int], int] = int) -> str:
    """Write counts by country as `DE=16,??=8`, the highest first, then by name. `shown` may round the counts."""
    in_order = sorted((-shown(number), country) for country, number in counts.items())
    return ",".join(f"{country}={-number}" for number, country in in_order)


def write_prometheus_page(counts: Mapping[str, int], available: Mapping[tuple[str, str], int]) -> str:
    """Write the page for Prometheus. `available` counts waiting proxies by type and NAT.

    Families without counts are omitted. Types and NATs that polled before stay on the page with 0 waiting proxies.
    """
    polled = {(labels["type"], labels["nat"]): 0 for labels, _ in iterate_labels(counts, POLLS)}
    numbers_waiting = polled | dict(available) or {(UNKNOWN_TYPE, str(Nat.UNKNOWN)): 0}
    waiting = {AVAILABLE.build_count_name(*labels): number for labels, number in numbers_waiting.items()}
    lines: list[str] = []
    for family in (AVAILABLE, *FAMILIES.values()):
        kind, numbers = ("gauge", waiting) if family is AVAILABLE else ("counter", counts)
        samples = list(iterate_labels(numbers, family)) if family.meaning else []
        name = f"{NAMESPACE}_{family.name}"
        if samples:
            lines += [f"# HELP {name} {family.meaning}{ROUNDED if family.is_rounded else ''}", f"# TYPE {name} {kind}"]
        for labels, number in samples:
            # Label values need no escaping, because `statistics` replaces all values with special characters.
            pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
            lines.append(f"{name}{{{pairs}}} {round_up(number) if family.is_rounded else number}")
    return "".join(f"{line}\n" for line in lines)
