"""The lines of Snowflake's metrics log, one by one."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_jobs.snowflake_log import BIN, Day, Offers, Polls, Proxies, log_lines, log_text, rounded

DAY = date(2026, 12, 31)


def lines(**counts: object) -> dict[str, str]:
    """By name; what follows the name and a space."""
    return dict(line.split(" ", 1) for line in log_lines(DAY, Day(**counts)))  # type: ignore[arg-type]  by their names


def test_a_day_without_events_has_all_lines_in_order() -> None:
    assert log_text(DAY, Day()).splitlines() == [
        "snowflake-stats-end 2027-01-01 00:00:00 (86400 s)",
        "snowflake-ips ",
        "snowflake-ips-iptproxy 0",
        "snowflake-ips-standalone 0",
        "snowflake-ips-webext 0",
        "snowflake-ips-badge 0",
        "snowflake-ips-total 0",
        "snowflake-idle-count 0",
        "snowflake-proxy-poll-with-relay-url-count 0",
        "snowflake-proxy-poll-without-relay-url-count 0",
        "snowflake-proxy-rejected-for-relay-url-count 0",
        "client-denied-count 0",
        "client-restricted-denied-count 0",
        "client-unrestricted-denied-count 0",
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
    ]


def test_addresses_are_not_rounded_and_come_by_count_then_by_country() -> None:
    """The example of Snowflake's own test."""
    countries = {"IT": 50, "FR": 200, "TZ": 100, "CN": 250, "RU": 150, "CA": 1, "BE": 1, "PH": 1}
    countries |= {"AT": 105, "MY": 112, "ZA": 108}
    found = lines(proxies=Proxies(total=1079, countries=countries))
    assert found["snowflake-ips"] == "CN=250,FR=200,RU=150,MY=112,ZA=108,AT=105,TZ=100,IT=50,BE=1,CA=1,PH=1"
    assert found["snowflake-ips-total"] == "1079"


def test_clients_are_rounded_by_country_and_come_by_the_exact_counts() -> None:
    countries = {"AT": 105, "MY": 112, "ZA": 108, "CA": 1, "??": 9, "XX": 0}
    found = lines(offers=Offers(countries={"sqs": countries}))
    assert found["client-sqs-ips"] == "MY=112,ZA=112,AT=112,??=16,CA=8"
    assert found["client-sqs-count"] == "336"  # of 335: not the sum of what is rounded


def test_the_sum_of_the_denied_is_rounded_by_itself() -> None:
    found = lines(offers=Offers(denied_restricted=3, denied_unrestricted=4))
    assert found["client-denied-count"] == "8"
    assert found["client-restricted-denied-count"] == "8"
    assert found["client-unrestricted-denied-count"] == "8"


@pytest.mark.parametrize(
    ("counts", "name", "value"),
    [
        pytest.param({"polls": Polls(idle=17)}, "snowflake-idle-count", "24"),
        pytest.param({"polls": Polls(with_relay_url=8)}, "snowflake-proxy-poll-with-relay-url-count", "8"),
        pytest.param({"polls": Polls(without_relay_url=9)}, "snowflake-proxy-poll-without-relay-url-count", "16"),
        pytest.param({"polls": Polls(rejected=1)}, "snowflake-proxy-rejected-for-relay-url-count", "8"),
        pytest.param({"offers": Offers(matched=25)}, "client-snowflake-match-count", "32"),
        pytest.param({"offers": Offers(timed_out=1)}, "client-snowflake-timeout-count", "8"),
        pytest.param({"proxies": Proxies(nats={"unknown": 3})}, "snowflake-ips-nat-unknown", "3"),
        pytest.param({"proxies": Proxies(types={"webext": 5, "bloco": 2})}, "snowflake-ips-webext", "5"),
    ],
)
def test_each_count_stands_in_its_line(counts: dict[str, object], name: str, value: str) -> None:
    assert lines(**counts)[name] == value


@given(st.integers(min_value=0, max_value=1 << 60))
def test_rounding_is_up_to_the_next_multiple(count: int) -> None:
    assert rounded(count) % BIN == 0
    assert 0 <= rounded(count) - count < BIN
