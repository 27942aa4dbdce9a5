"""A day's statistics, line by line as Snowflake's broker logs them. Pure.

Counts of clients and of polls are rounded up to a multiple of 8, counts of proxies' addresses aren't.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from sluice.rendezvous.counts.events import OfferOutcome, PollOutcome
from sluice.rendezvous.counts.statistics import (
    ADDRESSES,
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    OFFERS,
    POLLS,
    REJECTED,
    WITH_RELAY_URL,
    WITHOUT_RELAY_URL,
    Count,
    by_label,
    rounded_up,
    total,
)
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import OfferMethod
from sluice.times import DAY_MS, day_of, day_start_ms

DAY_S = DAY_MS // 1000
TYPES = ("iptproxy", "standalone", "webext", "badge")  # those with a line; the others are in the total alone
NATS = (Nat.RESTRICTED, Nat.UNRESTRICTED, Nat.UNKNOWN)


def daily_log(day: str, counts: Mapping[Count, int]) -> str:
    """Write the lines of one UTC day, such as `2026-11-21`: they name its end. Raises `Malformed` for no day."""
    return "".join(f"{line}\n" for line in _lines(day, counts))


def _lines(day: str, counts: Mapping[Count, int]) -> Iterator[str]:
    yield f"snowflake-stats-end {day_of(day_start_ms(day) + DAY_MS)} 00:00:00 ({DAY_S} s)"
    # Where there is no country the line ends in a space, as Snowflake's does.
    yield f"snowflake-ips {_countries(by_label(counts, ADDRESSES, 'cc'))}"
    for type_ in TYPES:
        yield f"snowflake-ips-{type_} {total(counts, ADDRESSES_BY_TYPE, type=type_)}"
    yield f"snowflake-ips-total {total(counts, ADDRESSES)}"
    yield f"snowflake-idle-count {rounded_up(total(counts, POLLS, status=PollOutcome.IDLE))}"
    yield f"snowflake-proxy-poll-with-relay-url-count {rounded_up(total(counts, WITH_RELAY_URL))}"
    yield f"snowflake-proxy-poll-without-relay-url-count {rounded_up(total(counts, WITHOUT_RELAY_URL))}"
    yield f"snowflake-proxy-rejected-for-relay-url-count {rounded_up(total(counts, REJECTED))}"
    denied = total(counts, OFFERS, status=OfferOutcome.DENIED)
    unrestricted = total(counts, OFFERS, status=OfferOutcome.DENIED, nat=Nat.UNRESTRICTED)
    yield f"client-denied-count {rounded_up(denied)}"
    # A client that doesn't know its NAT counts as restricted.
    yield f"client-restricted-denied-count {rounded_up(denied - unrestricted)}"
    yield f"client-unrestricted-denied-count {rounded_up(unrestricted)}"
    yield f"client-snowflake-match-count {rounded_up(total(counts, OFFERS, status=OfferOutcome.MATCHED))}"
    yield f"client-snowflake-timeout-count {rounded_up(total(counts, OFFERS, status=OfferOutcome.TIMEOUT))}"
    for method in (OfferMethod.HTTP, OfferMethod.AMP_CACHE, OfferMethod.SQS):
        countries = by_label(counts, OFFERS, "cc", rendezvous_method=method)
        yield f"client-{method}-count {rounded_up(countries.total())}"
        yield f"client-{method}-ips {_countries(countries, shown=rounded_up)}"
    for nat in NATS:
        yield f"snowflake-ips-nat-{nat} {total(counts, ADDRESSES_BY_NAT, nat=nat)}"


def _countries(counts: Counter[str], *, shown: Callable[[int], int] = int) -> str:
    """Write `DE=16,??=8`: the most first, by the numbers as they are and not as they are shown; the same by name."""
    in_order = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return ",".join(f"{country}={shown(number)}" for country, number in in_order)
