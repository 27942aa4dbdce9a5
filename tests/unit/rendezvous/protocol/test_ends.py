"""How offers, polls and answers end: each end has one name wherever it shows."""

from collections import Counter

import pytest

from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.protocol.ends import BY_STATE, OPEN, End, list_metrics, list_outcomes

EVENTS: dict[str, type[Event]] = {kind.kind: kind for kind in (OfferEvent, PollEvent, AnswerEvent)}


def test_no_two_ends_have_the_same_metric_or_the_same_state() -> None:
    named = [name for end in End for name in (end.value, end.state) if name]
    assert set(Counter(named).values()) == {1}
    assert {metric for kind in EVENTS for metric in list_metrics(kind)} == set(End)


def test_a_state_says_which_end_it_is() -> None:
    assert BY_STATE[OPEN] is None
    assert all(BY_STATE[end.state] is end for end in End if end.state)


@pytest.mark.parametrize("kind", list(EVENTS))
def test_each_outcome_that_events_tell_of_is_counted(kind: str) -> None:
    more = {"method": "sqs"} if kind == "offer" else {}
    for outcome in list_outcomes(kind):
        event = EVENTS[kind](id="i", at_ms=1, outcome=outcome, **more)
        assert tally(event) is not None


def test_the_stream_tells_of_each_end_that_is_stored_and_that_an_event_tells_of() -> None:
    [states] = [each["dynamodb"]["NewImage"]["state"]["S"] for each in FILTERS if "NewImage" in each["dynamodb"]]
    assert states == [end.state for end in End if end.state and end.event]
