"""The broker's log of a day and the statistics job's are of one format, which two packages write: neither needs the
other's."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.counts.daily_log import daily_log
from sluice.rendezvous.counts.statistics import Count
from sluice.rendezvous.protocol.matching import Nat
from sluice.rendezvous.protocol.messages import OfferMethod

JOBS_LOG = Path(__file__).parents[2] / "spark" / "sluice_jobs" / "snowflake_log.py"
NUMBERS = st.integers(1, 100)
COUNTRIES = st.sampled_from(["DE", "FR", "AT", "??"])
NATS = st.sampled_from([nat.value for nat in Nat])
TYPES = st.sampled_from(["iptproxy", "standalone", "webext", "badge", "other"])
OFFERS = st.dictionaries(
    st.tuples(
        NATS,
        st.sampled_from(["denied", "matched", "timeout"]),
        COUNTRIES,
        st.sampled_from([method.value for method in OfferMethod]),
    ),
    NUMBERS,
)
POLLS = st.fixed_dictionaries(dict.fromkeys(["idle", "with_relay_url", "without_relay_url", "rejected"], NUMBERS))
BY = ("unknown", "webext")  # the log has polls of all kinds of proxies in one number


@pytest.fixture(scope="module")
def job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("the_jobs_snowflake_log", JOBS_LOG)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def counted(addresses: Sequence[Mapping[str, int]], polls: Mapping[str, int], offers: Mapping[Any, int]) -> Any:
    """As the broker has them."""
    found = {Count("rounded_client_poll_total", values): number for values, number in offers.items()}
    found[Count("rounded_proxy_poll_total", (*BY, "idle"))] = polls["idle"]
    for name in ("with_relay_url", "without_relay_url"):
        found[Count(f"rounded_proxy_poll_{name}_extension_total", BY)] = polls[name]
    found[Count("rounded_proxy_poll_rejected_relay_url_extension_total", BY)] = polls["rejected"]
    for family, numbers in zip(("addresses", "addresses_by_type", "addresses_by_nat"), addresses, strict=True):
        found |= {Count(family, (value,)): number for value, number in numbers.items()}
    return Counter(found)


def day(
    job: ModuleType, addresses: Sequence[Mapping[str, int]], polls: Mapping[str, int], offers: Mapping[Any, int]
) -> Any:
    """As the job has them."""
    countries, types, nats = addresses
    outcomes, of_method = Counter[str](), {method.value: Counter[str]() for method in OfferMethod}
    for (nat, outcome, country, method), number in offers.items():
        denied = "denied_unrestricted" if nat == Nat.UNRESTRICTED else "denied_restricted"
        outcomes[{"denied": denied, "matched": "matched", "timeout": "timed_out"}[outcome]] += number
        of_method[method][country] += number
    return job.Day(
        proxies=job.Proxies(total=sum(countries.values()), countries=countries, types=types, nats=nats),
        polls=job.Polls(**polls),
        offers=job.Offers(**outcomes, countries=of_method),
    )


@given(
    st.tuples(*(st.dictionaries(names, NUMBERS) for names in (COUNTRIES, TYPES, NATS))),
    POLLS,
    OFFERS,
)
def test_the_broker_and_the_job_write_the_same_log(
    job: ModuleType, addresses: Sequence[Mapping[str, int]], polls: Mapping[str, int], offers: Mapping[Any, int]
) -> None:
    expected = job.log_text(date(2023, 11, 14), day(job, addresses, polls, offers))
    assert daily_log("2023-11-14", counted(addresses, polls, offers)) == expected
