"""All capabilities at once, functions killed, the cloud stopped and started: after it everything adds up."""

import pytest

from tests.chaos.conftest import CHAOS_S, DRAINED_WITHIN_S, Outcome
from tests.chaos.totals import End, Hearing

pytestmark = [
    pytest.mark.slow,  # `make test-slow` makes Spark first
    pytest.mark.timeout(CHAOS_S + DRAINED_WITHIN_S + 900),
]


def test_every_message_is_accounted_for(outcome: Outcome) -> None:
    totals = outcome.totals
    assert (sorted(totals.unaccounted), sorted(totals.unknown)) == ([], [])
    assert len(totals.sent) == sum(map(totals.at, End))


def test_everything_had_its_part(outcome: Outcome) -> None:
    """A run in which nothing was killed, landed, split or answered would show nothing."""
    totals = outcome.totals
    assert [end for end in End if not totals.ends.get(end)] == []
    assert totals.offers[Hearing.ANSWERED] > 0
    assert outcome.killed > CHAOS_S / 20
    assert outcome.restarts > 0
    assert outcome.book.sessions > 1


def test_each_message_ended_where_it_may(outcome: Outcome) -> None:
    ends = outcome.totals.ends
    sent = outcome.application.sent

    def ids(*kinds: str) -> set[str]:
        return {id_ for id_ in sent if id_.partition("-")[0] in kinds}

    assert ends[End.CONSUMED].keys() == ids("order")
    assert ends[End.QUARANTINED].keys() == ids("unreadable")
    assert ends[End.DEAD].keys() == ids("astray")


def test_a_session_got_its_own_countrys_messages_alone(outcome: Outcome) -> None:
    sent = outcome.application.sent
    found = {country: {sent.get(id_, country) for id_ in ids} for country, ids in outcome.book.by_country.items()}
    assert found == {country: {country} for country in outcome.book.by_country}


def test_orders_came_in_the_order_in_which_they_were_sent(outcome: Outcome) -> None:
    assert outcome.book.orders == outcome.application.orders


def test_what_could_not_arrive_says_why(outcome: Outcome) -> None:
    assert outcome.book.reasons
    assert [body for body, reason in outcome.book.reasons.items() if not reason] == []


def test_each_offer_was_answered_or_denied_or_came_too_late(outcome: Outcome) -> None:
    """Too late is what a slow machine makes of an offer, or a broker that was killed with it."""
    assert outcome.totals.unexplained == 0
