"""The lines of Snowflake's metrics log, one by one: the broker writes it of what it counted, the statistics job of what
the tables have."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.counts.pages import write_daily_log
from sluice.rendezvous.counts.statistics import (
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    OFFERS,
    POLLS,
    PROXIES,
    REJECTED,
    ROUND_TO,
    WITH_RELAY_URL,
    WITHOUT_RELAY_URL,
    round_up,
)

DAY = "2026-12-31"
BY = ("unknown", "webext")  # the log has polls of all kinds of proxies in one number


def lines(counts: Mapping[str, int]) -> dict[str, str]:
    """By name; what follows the name and a space."""
    return dict(line.split(" ", 1) for line in write_daily_log(DAY, counts).splitlines())


def offers(number: int, *, nat: str = "unknown", outcome: str = "matched", country: str = "??") -> dict[str, int]:
    return {OFFERS.build_count_name(nat, outcome, country, "sqs"): number}


def test_a_day_without_events_has_all_lines_in_order() -> None:
    assert write_daily_log(DAY, {}).splitlines() == [
        "snowflake-stats-end 2027-01-01 00:00:00 (86400 s)",
        "snowflake-ips ",
        "snowflake-ips-iptproxy 0",
        "snowflake-ips-standalone 0",
        "snowflake-ips-webext 0",
        "snowflake-ips-badge 0",
        "snowflake-ips-bloco 0",
        "snowflake-ips-total 0",
        "snowflake-idle-count 0",
        "snowflake-proxy-poll-with-relay-url-count 0",
        "snowflake-proxy-poll-without-relay-url-count 0",
        "snowflake-proxy-rejected-for-relay-url-count 0",
        "client-denied-count 0",
        "client-restricted-denied-count 0",
        "client-unrestricted-denied-count 0",
        "client-nat-open-denied-count 0",
        "client-nat-moderate-denied-count 0",
        "client-nat-strict-denied-count 0",
        "client-snowflake-match-count 0",
        "client-snowflake-timeout-count 0",
        "client-http-count 0",
        "client-http-ips ",
        "client-ampcache-count 0",
        "client-ampcache-ips ",
        "client-sqs-count 0",
        "client-sqs-ips ",
        "snowflake-ips-nat-restricted 0",
        "snowflake-ips-nat-unrestricted 0",
        "snowflake-ips-nat-unknown 0",
        "snowflake-ips-nat-open 0",
        "snowflake-ips-nat-moderate 0",
        "snowflake-ips-nat-strict 0",
    ]


def test_addresses_are_not_rounded_and_come_by_count_then_by_country() -> None:
    """The example of Snowflake's own test."""
    countries = {"IT": 50, "FR": 200, "TZ": 100, "CN": 250, "RU": 150, "CA": 1, "BE": 1, "PH": 1}
    countries |= {"AT": 105, "MY": 112, "ZA": 108}
    found = lines({PROXIES.build_count_name(*BY[::-1], country): number for country, number in countries.items()})
    assert found["snowflake-ips"] == "CN=250,FR=200,RU=150,MY=112,ZA=108,AT=105,TZ=100,IT=50,BE=1,CA=1,PH=1"
    assert found["snowflake-ips-total"] == "1078"


def test_clients_are_rounded_by_country_and_their_order_tells_nothing_more() -> None:
    counts: dict[str, int] = {}
    for country, number in {"AT": 105, "MY": 112, "ZA": 108, "CA": 1, "??": 9}.items():
        counts |= offers(number, country=country)
    found = lines(counts)
    assert found["client-sqs-ips"] == "AT=112,MY=112,ZA=112,??=16,CA=8"
    assert found["client-sqs-count"] == "336"  # of 335: not the sum of what is rounded


def test_the_sum_of_the_denied_is_rounded_by_itself() -> None:
    found = lines(offers(3, nat="restricted", outcome="denied") | offers(4, nat="unrestricted", outcome="denied"))
    assert found["client-denied-count"] == "8"
    assert found["client-restricted-denied-count"] == "8"
    assert found["client-unrestricted-denied-count"] == "8"


def test_the_denied_are_counted_by_each_nat_that_newer_clients_name() -> None:
    counts: dict[str, int] = {}
    for nat, number in {"open": 1, "moderate": 9, "strict": 17, "unknown": 25, "unrestricted": 33}.items():
        counts |= offers(number, nat=nat, outcome="denied")
    found = lines(counts)
    assert [found[f"client-nat-{nat}-denied-count"] for nat in ("open", "moderate", "strict")] == ["8", "16", "24"]
    assert (found["client-unrestricted-denied-count"], found["client-restricted-denied-count"]) == ("40", "56")


@pytest.mark.parametrize(
    ("counts", "name", "value"),
    [
        pytest.param({POLLS.build_count_name(*BY, "idle"): 17}, "snowflake-idle-count", "24"),
        pytest.param(
            {WITH_RELAY_URL.build_count_name(*BY): 8},
            "snowflake-proxy-poll-with-relay-url-count",
            "8",
        ),
        pytest.param(
            {WITHOUT_RELAY_URL.build_count_name(*BY): 9},
            "snowflake-proxy-poll-without-relay-url-count",
            "16",
        ),
        pytest.param(
            {REJECTED.build_count_name(*BY): 1},
            "snowflake-proxy-rejected-for-relay-url-count",
            "8",
        ),
        pytest.param(offers(25), "client-snowflake-match-count", "32"),
        pytest.param(offers(1, outcome="timeout"), "client-snowflake-timeout-count", "8"),
        pytest.param({ADDRESSES_BY_NAT.build_count_name("unknown"): 3}, "snowflake-ips-nat-unknown", "3"),
        pytest.param({ADDRESSES_BY_NAT.build_count_name("strict"): 3}, "snowflake-ips-nat-strict", "3"),
        pytest.param(
            {ADDRESSES_BY_TYPE.build_count_name("webext"): 5, ADDRESSES_BY_TYPE.build_count_name("bloco"): 2},
            "snowflake-ips-webext",
            "5",
        ),
    ],
)
def test_each_count_stands_in_its_line(counts: Mapping[str, int], name: str, value: str) -> None:
    assert lines(counts)[name] == value


@given(st.integers(min_value=0, max_value=1 << 60))
def test_rounding_is_up_to_the_next_multiple(count: int) -> None:
    assert round_up(count) % ROUND_TO == 0
    assert 0 <= round_up(count) - count < ROUND_TO
