"""What events count as, and the two pages of it: Prometheus' and the daily log, line by line."""

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.counts.pages import write_daily_log, write_prometheus_page
from sluice.rendezvous.counts.statistics import (
    ADDRESSES_BY_NAT,
    ADDRESSES_BY_TYPE,
    FAMILIES,
    OFFERS,
    PROXIES,
    Counts,
    Family,
    iterate_labels,
    round_up,
    tally,
    total,
)
from sluice.rendezvous.protocol.matching import Nat, Pool, Profile
from sluice.times import DAY_MS, format_day
from tests.fakes import FakeStatisticsStore
from tests.unit.rendezvous.test_broker import World as BrokerWorld
from tests.unit.rendezvous.test_http import World as HttpWorld

AT = 1_700_000_000_000
DAY = "2023-11-14"


@dataclass
class Script:
    """Events of a day, each with an id of its own."""

    statistics: FakeStatisticsStore = field(default_factory=FakeStatisticsStore)
    at_ms: int = AT
    number: int = 0

    def offers(
        self, number: int, outcome: str, *, nat: str = "unknown", country: str = "??", method: str = "sqs"
    ) -> None:
        for _ in range(number):
            id_, at_ms = self._next("offer")
            self._add(OfferEvent(id=id_, at_ms=at_ms, outcome=outcome, nat=nat, country=country, method=method))

    def polls(
        self,
        number: int,
        outcome: str,
        *,
        nat: str = "unknown",
        type_: str | None = "standalone",
        country: str = "??",
        address: str | None = None,
        relay_extension: bool = True,
    ) -> None:
        for _ in range(number):
            id_, at_ms = self._next("poll")
            self._add(
                PollEvent(
                    id=id_,
                    at_ms=at_ms,
                    outcome=outcome,
                    nat=nat,
                    proxy_type=type_,
                    country=country,
                    relay_extension=relay_extension,
                    address=address,
                )
            )

    def answers(self, number: int, outcome: str, *, type_: str = "standalone") -> None:
        for _ in range(number):
            id_, at_ms = self._next("answer")
            self._add(AnswerEvent(id=id_, at_ms=at_ms, outcome=outcome, proxy_type=type_))

    def _next(self, kind: str) -> tuple[str, int]:
        self.number += 1
        return derive_event_id(kind, str(self.number), at_ms=self.at_ms), self.at_ms

    def _add(self, event: Event) -> None:
        self.statistics.add([counts for counts in [tally(event)] if counts])

    @property
    def day(self) -> Counts:
        return self.statistics.read_day(DAY)


def scripted() -> Script:
    script = Script()
    script.offers(9, "denied", nat="restricted", country="DE")
    script.offers(1, "denied", nat="unknown", country="FR")
    script.offers(3, "denied", nat="unrestricted", country="AT", method="ampcache")
    script.offers(17, "matched", country="DE")
    script.offers(2, "timeout", country="??", method="http")
    script.polls(5, "idle", nat="restricted", type_="webext", country="DE", address="a1")
    script.polls(1, "matched", nat="unrestricted", type_="webext", country="DE", address="a1")
    script.polls(3, "idle", nat="unrestricted", country="DE", address="a2")
    script.polls(1, "matched", nat="unrestricted", type_="badge", country="FR", address="a3")
    script.polls(1, "idle", nat="unknown", type_=None, country="AT", address="a4")
    script.polls(1, "idle", nat="unknown", type_="iptproxy", address="a5", relay_extension=False)
    script.polls(1, "idle", nat="unknown", type_="bloco", address=None)
    script.polls(9, "rejected", nat="unknown", type_="webext", country="US", address="a6", relay_extension=False)
    script.answers(2, "success")
    script.answers(9, "timeout", type_="unknown")
    return script


def test_a_scripted_day_is_logged_as_snowflake_logs_it() -> None:
    assert write_daily_log(DAY, scripted().day) == (
        "snowflake-stats-end 2023-11-15 00:00:00 (86400 s)\n"
        "snowflake-ips DE=2,??=1,AT=1,FR=1\n"
        "snowflake-ips-iptproxy 1\n"
        "snowflake-ips-standalone 1\n"
        "snowflake-ips-webext 1\n"
        "snowflake-ips-badge 1\n"
        "snowflake-ips-bloco 0\n"
        "snowflake-ips-total 5\n"
        "snowflake-idle-count 16\n"
        "snowflake-proxy-poll-with-relay-url-count 16\n"
        "snowflake-proxy-poll-without-relay-url-count 16\n"
        "snowflake-proxy-rejected-for-relay-url-count 16\n"
        "client-denied-count 16\n"
        "client-restricted-denied-count 16\n"
        "client-unrestricted-denied-count 8\n"
        "client-nat-open-denied-count 0\n"
        "client-nat-moderate-denied-count 0\n"
        "client-nat-strict-denied-count 0\n"
        "client-snowflake-match-count 24\n"
        "client-snowflake-timeout-count 8\n"
        "client-http-count 8\n"
        "client-http-ips ??=8\n"
        "client-ampcache-count 8\n"
        "client-ampcache-ips AT=8\n"
        "client-sqs-count 32\n"
        "client-sqs-ips DE=32,FR=8\n"
        "snowflake-ips-nat-restricted 1\n"
        "snowflake-ips-nat-unrestricted 3\n"
        "snowflake-ips-nat-unknown 2\n"
        "snowflake-ips-nat-open 0\n"
        "snowflake-ips-nat-moderate 0\n"
        "snowflake-ips-nat-strict 0\n"
    )


def test_an_empty_day_has_every_line() -> None:
    lines = write_daily_log(DAY, Counter()).splitlines()
    assert len(lines) == 32
    assert lines[1] == "snowflake-ips "
    assert [line for line in lines[2:] if not line.endswith((" 0", "-ips "))] == []


def test_countries_with_one_rounded_number_are_in_the_order_of_their_names() -> None:
    script = Script()
    for country, number in (("AT", 3), ("DE", 5), ("FR", 3)):
        script.offers(number, "denied", country=country)
    assert "client-sqs-ips AT=8,DE=8,FR=8" in write_daily_log(DAY, script.day).splitlines()


def test_the_page_for_prometheus() -> None:
    page = write_prometheus_page(
        scripted().statistics.read_totals(), {("webext", "restricted"): 2, ("badge", "unknown"): 1}
    )
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    assert samples == [
        'snowflake_available_proxies{type="badge",nat="unknown"} 1',
        'snowflake_available_proxies{type="badge",nat="unrestricted"} 0',
        'snowflake_available_proxies{type="bloco",nat="unknown"} 0',
        'snowflake_available_proxies{type="iptproxy",nat="unknown"} 0',
        'snowflake_available_proxies{type="standalone",nat="unrestricted"} 0',
        'snowflake_available_proxies{type="unknown",nat="unknown"} 0',
        'snowflake_available_proxies{type="webext",nat="restricted"} 2',
        'snowflake_available_proxies{type="webext",nat="unrestricted"} 0',
        'snowflake_proxy_total{type="badge",nat="unrestricted",cc="FR"} 1',
        'snowflake_proxy_total{type="iptproxy",nat="unknown",cc="??"} 1',
        'snowflake_proxy_total{type="standalone",nat="unrestricted",cc="DE"} 1',
        'snowflake_proxy_total{type="unknown",nat="unknown",cc="AT"} 1',
        'snowflake_proxy_total{type="webext",nat="restricted",cc="DE"} 1',
        'snowflake_rounded_proxy_poll_total{nat="restricted",type="webext",status="idle"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unknown",type="bloco",status="idle"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unknown",type="iptproxy",status="idle"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unknown",type="unknown",status="idle"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unrestricted",type="badge",status="matched"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unrestricted",type="standalone",status="idle"} 8',
        'snowflake_rounded_proxy_poll_total{nat="unrestricted",type="webext",status="matched"} 8',
        'snowflake_rounded_proxy_answer_total{type="",status="timeout"} 16',
        'snowflake_rounded_proxy_answer_total{type="standalone",status="success"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="restricted",type="webext"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unknown",type="bloco"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unknown",type="unknown"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unrestricted",type="badge"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unrestricted",type="standalone"} 8',
        'snowflake_rounded_proxy_poll_with_relay_url_extension_total{nat="unrestricted",type="webext"} 8',
        'snowflake_rounded_proxy_poll_without_relay_url_extension_total{nat="unknown",type="iptproxy"} 8',
        'snowflake_rounded_proxy_poll_without_relay_url_extension_total{nat="unknown",type="webext"} 16',
        'snowflake_rounded_proxy_poll_rejected_relay_url_extension_total{nat="unknown",type="webext"} 16',
        'snowflake_rounded_client_poll_total{nat="restricted",status="denied",cc="DE",rendezvous_method="sqs"} 16',
        'snowflake_rounded_client_poll_total{nat="unknown",status="denied",cc="FR",rendezvous_method="sqs"} 8',
        'snowflake_rounded_client_poll_total{nat="unknown",status="matched",cc="DE",rendezvous_method="sqs"} 24',
        'snowflake_rounded_client_poll_total{nat="unknown",status="timeout",cc="??",rendezvous_method="http"} 8',
        (
            'snowflake_rounded_client_poll_total{nat="unrestricted",status="denied",cc="AT",'
            'rendezvous_method="ampcache"} 8'
        ),
    ]


def test_every_family_of_the_page_says_what_it_is_before_its_first_sample() -> None:
    page = write_prometheus_page(scripted().statistics.read_totals(), {("webext", "restricted"): 2}).splitlines()
    declared: dict[str, str] = {}
    for line in page:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in declared
            declared[name] = kind
        elif not line.startswith("# HELP "):
            # https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
            found = re.fullmatch(r'([a-z_]+)\{([a-z_]+="[^"\\\n]*"(?:,[a-z_]+="[^"\\\n]*")*)\} (\d+)', line)
            assert found, line
            assert found[1] in declared
    assert set(declared.values()) == {"counter", "gauge"}
    assert [name for name, kind in declared.items() if kind == "counter"] == [
        f"snowflake_{family.name}" for family in FAMILIES.values() if family.meaning
    ]


def test_without_anything_counted_the_pages_are_empty() -> None:
    samples = [line for line in write_prometheus_page(Counter(), {}).splitlines() if not line.startswith("#")]
    assert samples == ['snowflake_available_proxies{type="unknown",nat="unknown"} 0']
    assert HttpWorld().request("GET", "/metrics").body == ""


@given(st.integers(0, 10**12))
def test_counts_are_rounded_up_to_the_next_multiple_of_eight(number: int) -> None:
    assert round_up(number) == math.ceil(number / 8) * 8


@pytest.mark.parametrize("outcome", ["of the future", ""])
def test_an_outcome_that_nobody_knows_isnt_counted(outcome: str) -> None:
    script = Script()
    script.offers(1, outcome)
    script.polls(1, outcome, address="a")
    script.answers(1, outcome)
    assert script.statistics.read_totals() == script.day == Counter()


@pytest.mark.parametrize("odd", ['quote"', "line\nbreak", "pipe|", "x" * 33, "", "ü"])
def test_a_label_from_elsewhere_doesnt_break_the_page(odd: str) -> None:
    script = Script()
    script.offers(1, "denied", nat=odd, country=odd, method=odd)
    [count] = script.day
    assert count == OFFERS.build_count_name("unknown", "denied", "unknown", "unknown")


# Uniqueness


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(list(Nat)),
            st.sampled_from(["webext", "badge", None]),
            st.sampled_from(["idle", "matched", "rejected"]),
        )
    )
)
def test_an_address_counts_once_and_once_for_each_nat_and_type(
    polls: Sequence[tuple[str | None, Nat, str | None, str]],
) -> None:
    script = Script()
    for address, nat, type_, outcome in polls:
        script.polls(1, outcome, nat=nat, type_=type_, country="DE", address=address)
    taken = [(a, nat, type_ or "unknown") for a, nat, type_, outcome in polls if a and outcome != "rejected"]
    counted = script.day
    assert total(counted, PROXIES, cc="DE") == len({address for address, *_ in taken})
    for nat in Nat:
        expected = len({a for a, n, _ in taken if n == nat})
        assert counted[ADDRESSES_BY_NAT.build_count_name(nat)] == expected
    for type_ in ("webext", "badge", "unknown"):
        assert counted[ADDRESSES_BY_TYPE.build_count_name(type_)] == len({a for a, _, t in taken if t == type_})


def test_the_total_of_proxies_has_each_address_of_a_day_once_as_it_polled_first() -> None:
    script = Script()
    script.polls(3, "idle", address="a", nat="strict", country="DE")
    script.polls(2, "idle", address="a", nat="open", country="DE")
    script.at_ms += DAY_MS
    script.polls(2, "idle", address="a", nat="open", country="DE")
    totals = script.statistics.read_totals()
    assert totals[PROXIES.build_count_name("standalone", "strict", "DE")] == 1
    assert totals[PROXIES.build_count_name("standalone", "open", "DE")] == 1
    assert not any(count.startswith("d") for count in totals)


def test_a_day_begins_with_no_address_seen() -> None:
    script = Script()
    script.polls(1, "idle", address="a", country="DE")
    script.at_ms += DAY_MS
    script.polls(1, "idle", address="a", country="DE")
    for day in (DAY, format_day(AT + DAY_MS)):
        assert script.statistics.read_day(day)[PROXIES.build_count_name("standalone", "unknown", "DE")] == 1


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_count_is_read_from_its_row_as_it_was_written(family: Family) -> None:
    values = [f"{label}-value" for label in family.labels]
    count = family.build_count_name(*values)
    assert list(iterate_labels({count: 2, f"{count}|newer": 3}, family)) == [
        (dict(zip(family.labels, values, strict=True)), 2)
    ]


# Over HTTP


def test_the_log_has_the_days_that_are_over_the_earliest_first() -> None:
    world = HttpWorld()
    for ago in (0, 1, 3, 7, 8):
        script = Script(world.statistics, at_ms=world.clock.ms - ago * DAY_MS)
        script.offers(1, "denied")
    response = world.request("GET", "/metrics")
    ends = re.findall(r"snowflake-stats-end (\S+) ", response.body)
    assert ends == [format_day(world.clock.ms - ago * DAY_MS) for ago in (6, 2, 0)]
    assert response.event()["headers"]["Access-Control-Allow-Origin"] == "*"


def test_prometheus_sees_who_waits_and_what_was_counted() -> None:
    world = HttpWorld()
    Script(world.statistics).offers(1, "denied", country="DE")
    proxies = BrokerWorld.beside(world)
    for name, pool in (("p", Pool.RESTRICTED), ("q", Pool.UNRESTRICTED)):
        proxies.proxy(name, pool=pool)
    response = world.request("GET", "/prometheus")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert f'snowflake_available_proxies{{type="unknown",nat="{Profile().nat}"}} 2' in response.body.splitlines()
    assert 'cc="DE"' in response.body


def test_the_daily_log_is_imported_without_aws_and_without_what_functions_need() -> None:
    """The statistics job writes it too, from an archive of its own."""
    code = (
        "import sys, sluice.rendezvous.counts.pages\n"
        "print([name for name in ('boto3', 'botocore', 'aws_lambda_powertools') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
