"""Splitting of queues whose consumers are re-pointed, under faults: nothing is lost, and all is put back."""

import pytest

from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import run
from tests.simulation.runs import FIRST_SEED, GROUPS, SEEDS, holds
from tests.simulation.scenarios.repointing import Repointing

SHARE = 4  # of the seeds that the other capabilities have, one in so many: much of it is splitting's own


@pytest.mark.parametrize("group", range(GROUPS // SHARE))
def test_every_message_reaches_whom_the_sessions_say_and_consumers_are_put_back(group: int):
    holds(Repointing, range(FIRST_SEED + group, FIRST_SEED + SEEDS // SHARE, GROUPS // SHARE))


def test_without_faults_consumers_go_and_come_back():
    run(Repointing, 0, faults=CALM)
