"""A day's counts as lines of Snowflake's metrics log, in its broker's order. Pure: what is counted is `statistics`'.

Polls of clients and proxies are rounded up to a multiple of 8, each country's by itself; proxies' addresses aren't.
Countries come by count, the larger first, then by their letters: by the exact count, also where a rounded one is shown,
as Snowflake's broker sorts them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta

BIN = 8
DAY_S = 86_400
METHODS = ("http", "ampcache", "sqs")
# As the broker lists them; other types count in the total alone
PROXY_TYPES = ("iptproxy", "standalone", "webext", "badge")
NATS = ("restricted", "unrestricted", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """Addresses, each counted once in each of these: `countries` sum up to `total`, types and NATs may be more."""

    total: int = 0
    countries: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)
    nats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polls:
    """Of proxies. One that was rejected had a relay pattern or not, and is counted there too."""

    idle: int = 0
    with_relay_url: int = 0
    without_relay_url: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Of clients. `countries` are by method, of offers with any outcome."""

    denied_restricted: int = 0
    denied_unrestricted: int = 0
    matched: int = 0
    timed_out: int = 0
    countries: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def denied(self) -> int:
        """Of any NAT."""
        return self.denied_restricted + self.denied_unrestricted


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """All of it; exact, before rounding."""

    proxies: Proxies = field(default_factory=Proxies)
    polls: Polls = field(default_factory=Polls)
    offers: Offers = field(default_factory=Offers)


def log_text(day: date, counts: Day) -> str:
    """The lines of the day, a line end after each. The day's end stands in the first."""
    return "".join(f"{line}\n" for line in log_lines(day, counts))


def log_lines(day: date, counts: Day) -> Iterator[str]:
    """As `log_text`. A list without a country leaves a space at its line's end, as the broker does."""
    end = datetime.combine(day + timedelta(days=1), time())
    yield f"snowflake-stats-end {end:%Y-%m-%d %H:%M:%S} ({DAY_S} s)"
    yield f"snowflake-ips {_listed(counts.proxies.countries)}"
    for proxy_type in PROXY_TYPES:
        yield f"snowflake-ips-{proxy_type} {counts.proxies.types.get(proxy_type, 0)}"
    yield f"snowflake-ips-total {counts.proxies.total}"
    yield from _poll_lines(counts.polls)
    yield from _offer_lines(counts.offers)
    for nat in NATS:
        yield f"snowflake-ips-nat-{nat} {counts.proxies.nats.get(nat, 0)}"


def rounded(count: int) -> int:
    """Up to the next multiple of BIN."""
    return -(-count // BIN) * BIN


def _poll_lines(polls: Polls) -> Iterator[str]:
    yield f"snowflake-idle-count {rounded(polls.idle)}"
    yield f"snowflake-proxy-poll-with-relay-url-count {rounded(polls.with_relay_url)}"
    yield f"snowflake-proxy-poll-without-relay-url-count {rounded(polls.without_relay_url)}"
    yield f"snowflake-proxy-rejected-for-relay-url-count {rounded(polls.rejected)}"


def _offer_lines(offers: Offers) -> Iterator[str]:
    yield f"client-denied-count {rounded(offers.denied)}"
    yield f"client-restricted-denied-count {rounded(offers.denied_restricted)}"
    yield f"client-unrestricted-denied-count {rounded(offers.denied_unrestricted)}"
    yield f"client-snowflake-match-count {rounded(offers.matched)}"
    yield f"client-snowflake-timeout-count {rounded(offers.timed_out)}"
    for method in METHODS:
        countries = offers.countries.get(method, {})
        yield f"client-{method}-count {rounded(sum(countries.values()))}"
        yield f"client-{method}-ips {_listed(countries, shown=rounded)}"


def _listed(countries: Mapping[str, int], *, shown: Callable[[int], int] = int) -> str:
    """Countries without a count aren't there."""
    found = sorted((-count, country) for country, count in countries.items() if count)
    return ",".join(f"{country}={shown(-count)}" for count, country in found)
