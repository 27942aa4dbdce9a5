"""The rendezvous under faults: whatever happens, one proxy an offer, a reply for each client, nothing left."""

from dataclasses import replace

import pytest

from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import run
from tests.simulation.runs import FIRST_SEED, GROUPS, SEEDS, holds
from tests.simulation.scenarios.rendezvous import Rendezvous
from tests.simulation.scenarios.rendezvous_alone import (
    Alone,
    Conflicts,
    DeliveredAgain,
    DeliveredAtOnce,
    Dies,
    DiesAnswered,
    DiesMatched,
    FewHeld,
    Leftovers,
    NewAnswerQueue,
    NewMailbox,
    NobodyTakesIt,
    SidAgain,
    SlowLine,
    Throttled,
    ThrottledInTurn,
    WrittenAgain,
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_each_offer_has_one_proxy_at_most_and_each_client_hears(group: int):
    holds(Rendezvous, range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


def test_a_proxy_that_waits_behind_any_number_of_leftovers_is_found():
    run(Leftovers, 0)


def test_a_client_that_reads_its_queue_late_gets_its_answer():
    run(SlowLine, 0)


def test_a_client_whose_offer_nobody_takes_hears_soon():
    run(NobodyTakesIt, 0)


def test_a_poll_whose_entry_is_written_again_gets_one_offer():
    run(WrittenAgain, 0)


def test_clients_who_come_at_once_get_the_proxies_that_are_idle():
    run(FewHeld, 0)


def test_a_client_hears_within_its_patience_though_the_table_refuses_a_call():
    run(Throttled, 0)


def test_a_client_hears_within_its_patience_whichever_call_is_refused():
    run(ThrottledInTurn, 0)


@pytest.mark.parametrize("scenario", [DiesMatched, DiesAnswered])
def test_a_client_hears_within_its_patience_whatever_dies(scenario: type[Dies]):
    run(scenario, 0)


def test_a_client_gets_the_proxy_that_waits_though_its_claim_meets_another_write():
    run(Conflicts, 0, faults=replace(CALM, throttle=0.1))


def test_an_offer_that_is_denied_and_comes_again_has_one_reply():
    run(DeliveredAgain, 0, faults=replace(CALM, duplicate=0.9))


def test_an_offer_that_is_matched_is_not_denied_by_another_delivery():
    run(DeliveredAtOnce, 0, faults=replace(CALM, duplicate=0.9))


def test_a_client_hears_though_its_queue_is_not_found_at_once():
    run(NewAnswerQueue, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


def test_a_poll_is_held_though_its_mailbox_is_not_found_at_once():
    run(NewMailbox, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


@pytest.mark.parametrize("scenario", [NewAnswerQueue, NewMailbox])
def test_all_is_well_with_queues_that_are_found_at_once(scenario: type[Alone]):
    run(scenario, 0)


def test_an_answer_under_a_sid_that_is_used_again_reaches_nobody_else():
    run(SidAgain, 0)
