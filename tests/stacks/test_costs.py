"""What a site of these templates costs at rest is what the documents say."""

import pytest

from benchmarks.cost import SETS, Costs
from benchmarks.rest import month_with
from sluice.costs.prices import price_list
from sluice.costs.rest import ENDPOINTS, Month, usd_by_part

OWN_MOST_USD = 3.0  # a month, of the five that a site may cost with its alarms


# A synth needs what `layer` builds.
@pytest.fixture(scope="module")
def default(layer: object) -> Month:
    counts = Costs.kept().counts
    return month_with(SETS["default"], minute=counts.minute, metrics=counts.metrics)


def test_the_month_at_rest_is_what_was_last_written(default: Month) -> None:
    assert default == Costs.kept().months["default"], "python -m benchmarks.cost --last --write"


def test_triggers_schedules_and_metrics_cost_less_than_three_dollars_a_month(default: Month) -> None:
    usd = usd_by_part(default)
    assert 0 < sum(usd[part] for part in ("triggers", "schedules", "metrics", "keys")) <= OWN_MOST_USD


def test_what_endpoints_cost_is_said_apart() -> None:
    costs = Costs.kept()
    endpoints = price_list().usd(costs.months["default"][ENDPOINTS])
    without = costs.month_usd("default", endpoints=False)
    assert endpoints > 0
    assert costs.month_usd("default") == pytest.approx(without + endpoints)
    assert costs.month_usd("two zones") == pytest.approx(without + 2 * endpoints)
    assert costs.month_usd("resting") == pytest.approx(without)
