"""The rendezvous under faults: whatever happens, one proxy an offer, a reply for each client, nothing left."""

from dataclasses import replace

import pytest

from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import Failed, run
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
    DiesTimedOut,
    FewHeld,
    Leftovers,
    NewAnswerQueue,
    NewMailbox,
    SidAgain,
    Steady,
    Throttled,
    WrittenAgain,
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_each_offer_has_one_proxy_at_most_and_each_client_hears(group: int):
    holds(Rendezvous, range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


@pytest.mark.xfail(strict=True, raises=Failed, reason="fifty leftovers in a pool deny every client")
def test_a_proxy_that_waits_behind_any_number_of_leftovers_is_found():
    run(Leftovers, 0)


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a poll whose entry is written again after it was matched is matched twice"
)
def test_a_poll_whose_entry_is_written_again_gets_one_offer():
    run(WrittenAgain, 0)


@pytest.mark.xfail(strict=True, raises=Failed, reason="proxies are idle and clients denied, as few polls are held")
def test_clients_who_come_at_once_get_the_proxies_that_are_idle():
    run(FewHeld, 0)


@pytest.mark.xfail(strict=True, raises=Failed, reason="a call that fails once leaves a client waiting for 110 seconds")
def test_a_client_hears_within_its_patience_though_the_table_refuses_a_call():
    run(Throttled, 0)


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a function that dies with an offer in hand leaves its client waiting"
)
@pytest.mark.parametrize("scenario", [DiesMatched, DiesAnswered, DiesTimedOut])
def test_a_client_hears_within_its_patience_whatever_dies(scenario: type[Dies]):
    run(scenario, 0)


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a proxy whose claim met another's write is passed over, and the client denied"
)
def test_a_client_gets_the_proxy_that_waits_though_its_claim_meets_another_write():
    run(Conflicts, 0, faults=replace(CALM, throttle=0.1))


@pytest.mark.xfail(strict=True, raises=Failed, reason="an offer that is denied has a reply for each delivery")
def test_an_offer_that_is_denied_and_comes_again_has_one_reply():
    run(DeliveredAgain, 0, faults=replace(CALM, duplicate=0.9))


@pytest.mark.xfail(strict=True, raises=Failed, reason="an offer that is delivered twice at once is matched and denied")
def test_an_offer_that_is_matched_is_not_denied_by_another_delivery():
    run(DeliveredAtOnce, 0, faults=replace(CALM, duplicate=0.9))


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a queue that is used within a second of its creation leaves its client waiting"
)
def test_a_client_hears_though_its_queue_is_not_found_at_once():
    run(NewAnswerQueue, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="a queue that is used within a second of its creation is made again at each poll"
)
def test_a_poll_is_held_though_its_mailbox_is_not_found_at_once():
    run(NewMailbox, 0, faults=replace(CALM, new_queue_hidden_s=1.0))


@pytest.mark.parametrize("scenario", [NewAnswerQueue, NewMailbox])
def test_all_is_well_with_queues_that_are_found_at_once(scenario: type[Alone]):
    run(scenario, 0)


@pytest.mark.xfail(
    strict=True, raises=Failed, reason="an answer under a Sid that was matched again reaches the later client"
)
def test_an_answer_under_a_sid_that_is_used_again_reaches_nobody_else():
    run(SidAgain, 0)


@pytest.mark.xfail(strict=True, raises=Failed, reason="ticks become more and more while offers keep coming")
def test_ticks_become_no_more_while_offers_keep_coming():
    run(Steady, 1)
