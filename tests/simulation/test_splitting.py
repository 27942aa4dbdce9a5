"""Splitting under faults: whatever happens, nothing is lost, misled, reordered or left over."""

from dataclasses import replace

import pytest

from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import run
from tests.simulation.runs import FIRST_SEED, GROUPS, SEEDS, holds
from tests.simulation.scenarios.splitting import Splitting
from tests.simulation.scenarios.splitting_alone import Alone, JustMade, Lost, NeverEnds, NotStarted, Refuses, Unfinished


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_message_reaches_whom_the_sessions_say_and_nothing_is_left(group: int):
    holds(Splitting, range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


def test_a_program_that_never_ends_holds_up_nobody_else():
    run(NeverEnds, 0)


@pytest.mark.parametrize("scenario", [Lost, Refuses])
def test_a_queue_that_cant_be_sent_to_holds_up_nobody_and_ends_its_session(scenario: type[Alone]):
    run(scenario, 0)


def test_a_session_that_is_ready_gets_its_messages_also_within_a_second():
    run(JustMade, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


def test_a_session_whose_queue_is_found_at_once_gets_its_messages_from_the_first_on():
    run(JustMade, 0)


def test_a_session_that_failed_to_start_costs_nothing_while_it_is_remembered():
    run(NotStarted, 0)


def test_what_a_sessions_consumer_fails_at_again_and_again_goes_to_main():
    run(Unfinished, 0)
