"""Federation under faults: whatever happens, nothing is lost, misled, reordered or left over, and routes mend."""

from dataclasses import replace

import pytest

from tests.simulation.kernel.faults import CALM, Faults
from tests.simulation.kernel.world import Failed, Scenario, run
from tests.simulation.runs import FIRST_SEED, GROUPS, SEEDS, holds
from tests.simulation.scenarios.federation import Federation
from tests.simulation.scenarios.federation_alone import (
    AllWell,
    AnswerLost,
    AwayForLong,
    BoundQueueGone,
    BridgeQueueGone,
    ErrorStays,
    Forged,
    JustBound,
    NothingKept,
    OldReport,
    RobbedAmidTraffic,
    SecondWayAway,
    Stalling,
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_message_reaches_whoever_is_bound_and_routes_mend(group: int):
    holds(Federation, range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


def test_a_sweep_does_not_make_the_trigger_of_a_route_that_goes_meanwhile():
    run(Federation, 20261181)


def test_a_peer_gets_nothing_by_a_hello_in_anothers_name():
    run(Forged, 0)


def test_a_route_whose_queue_is_deleted_mends_by_itself():
    run(BridgeQueueGone, 0)


def test_a_queue_that_is_deleted_amid_traffic_loses_what_was_in_it_and_nothing_else():
    for seed in range(5):
        run(RobbedAmidTraffic, seed)


def test_a_bound_queue_that_is_gone_takes_its_bindings_with_it():
    run(BoundQueueGone, 0)


@pytest.mark.parametrize("scenario", [SecondWayAway, AwayForLong])
def test_by_two_static_ways_a_message_comes_once_where_they_are_less_than_five_minutes_apart(scenario: type[Scenario]):
    run(scenario, 0)


def test_what_is_sent_while_a_route_is_laid_is_no_dead_letter():
    run(JustBound, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


def test_what_is_sent_while_a_route_is_laid_whose_queue_is_found_at_once_is_no_dead_letter():
    run(JustBound, 0)


def test_every_message_reaches_whoever_is_bound_where_aws_says_not_yet():
    faults = replace(Faults(), new_queue_hidden_s=1.0, mapping_settles_s=2.0)
    holds(Federation, range(FIRST_SEED, FIRST_SEED + 5), faults=faults)


def test_a_document_can_be_read_after_an_answer_was_lost():
    run(AnswerLost, 0)


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a part of a document stays for good, where its writer dies before the rest"
)
def test_nothing_is_kept_of_a_document_that_was_never_finished():
    run(NothingKept, 0)


def test_a_route_that_carries_is_not_failed():
    run(ErrorStays, 0)


def test_a_link_that_has_mended_stays_so_whatever_is_heard_late():
    for seed in range(5):
        run(OldReport, seed)


def test_a_link_that_is_well_is_operational_all_the_time():
    for seed in range(5):
        run(Stalling, seed)


def test_where_nothing_goes_wrong_no_route_is_down():
    run(AllWell, 0)
