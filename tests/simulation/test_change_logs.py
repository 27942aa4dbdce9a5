"""A value that is changed bit by bit, under faults: one history, nothing lost of it, nothing left beside it."""

import pytest

from tests.simulation.runs import FIRST_SEED, GROUPS, SEEDS, holds
from tests.simulation.scenarios.change_logs import ChangeLogs


@pytest.mark.parametrize("group", range(GROUPS))
def test_all_see_one_history_and_nothing_is_left_of_who_died(group: int):
    holds(ChangeLogs, range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))
