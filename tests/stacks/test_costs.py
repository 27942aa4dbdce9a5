"""What a site of these templates costs at rest is what the documents say."""

import pytest

from benchmarks.cost import IDLE_MOST_USD, SETS, Costs
from benchmarks.rest import month_with
from benchmarks.site_templates import Month

OWN_MOST_USD = 3.0  # a month, of the five that a site may cost with its alarms


# A synth needs what `layer` builds.
@pytest.fixture(scope="module")
def default(layer: object) -> Month:
    return month_with(SETS["default"])


def test_the_month_at_rest_is_what_was_last_written(default: Month) -> None:
    assert default == Costs.kept().months["default"], "python -m benchmarks.cost --last --write"


def test_triggers_and_schedules_cost_less_than_three_dollars_a_month() -> None:
    usd = Costs.kept().usd_by_part("default")
    assert 0 < sum(usd[part] for part in ("triggers", "schedules", "keys")) <= OWN_MOST_USD


def test_the_default_costs_at_most_five_dollars_a_month() -> None:
    assert 0 < Costs.kept().month_usd("default") <= IDLE_MOST_USD


def test_a_stream_pays_for_its_endpoints_in_each_zone() -> None:
    costs = Costs.kept()
    endpoints = costs.months["streaming"]["land job"]["endpoint"]
    assert (endpoints, costs.months["two zones"]["land job"]["endpoint"]) == (2, 4)
