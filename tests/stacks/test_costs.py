"""What a site of these templates costs at rest is what the documents say."""

import pytest

from benchmarks.cost import SETS, Costs
from benchmarks.rest import month_with
from sluice.costs import ENDPOINTS, Month

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


def test_what_endpoints_cost_is_said_apart() -> None:
    costs = Costs.kept()
    endpoints = costs.usd_by_part("default")[ENDPOINTS]
    without = costs.month_usd("default", endpoints=False)
    assert endpoints > 0
    assert costs.month_usd("default") == pytest.approx(without + endpoints)
    assert costs.month_usd("two zones") == pytest.approx(without + 2 * endpoints)
    assert costs.month_usd("resting") == pytest.approx(without)
