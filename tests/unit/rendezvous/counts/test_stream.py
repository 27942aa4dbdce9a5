"""The table's stream tells of events: those that functions wrote down, and those that an answered offer is."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, event_id
from sluice.rendezvous.counts.stream import join_events, read_record

AT = 1_700_000_000_000
SEQUENCE = "4421584500000000017450439091"
OFFER = OfferEvent(id=event_id("offer", "c", at_ms=AT), at_ms=AT, outcome="denied", country="DE", method="sqs")
POLLS = PollEvent(
    id=event_id("poll", "p", at_ms=AT), at_ms=AT, outcome="idle", polls=3, addresses=("a", "b"), proxy_type="webext"
)


def record(image: Mapping[str, Any], *, name: str = "INSERT") -> dict[str, Any]:
    """As Lambda gives it."""
    keys = {key: image[key] for key in ("pk", "sk")}
    return {
        "eventID": "7de3041dd709b024af6f29e4fa13d34c",
        "eventName": name,
        "eventSource": "aws:dynamodb",
        "eventSourceARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/t/stream/2026-01-01T00:00:00.000",
        "dynamodb": {"Keys": keys, "NewImage": dict(image), "SequenceNumber": SEQUENCE},
    }


def told(text: str) -> dict[str, Any]:
    return record({"pk": {"S": "told"}, "sk": {"S": "01HF7YAT006VVE3DQMDDMPT7RR"}, "events": {"S": text}})


def bodies(*events: Event) -> list[str]:
    return [event.to_json(site="s") for event in events]


def test_an_item_tells_of_its_events_in_order() -> None:
    found = read_record(told(join_events(bodies(OFFER, POLLS))))
    assert found.events == (OFFER, POLLS)
    assert found.bad == ()
    assert found.sequence_number == SEQUENCE


def test_what_is_no_event_is_named_and_keeps_no_other_from_being_told() -> None:
    future = json.dumps(json.loads(OFFER.to_json(site="s")) | {"kind": "of the future"})
    found = read_record(told(f"[{OFFER.to_json(site='s')},5,{future},{POLLS.to_json(site='s')}]"))
    assert found.events == (OFFER, POLLS)
    assert [(each.body, each.reason) for each in found.bad] == [("5", "an event is a JSON object")]


@given(st.sampled_from(["", "[", "5", "null", "{}"]) | st.text())
def test_what_is_no_list_is_named(text: str) -> None:
    found = read_record(told(text))
    assert found.events == ()
    assert [json.loads(each.body) for each in found.bad] == [text]


def answered(**changes: Any) -> dict[str, Any]:
    image = {
        "pk": {"S": "offers#2"},
        "sk": {"S": f"{AT:013d}#0123456789abcdef"},
        "state": {"S": "answered"},
        "method": {"S": "sqs"},
        "nat": {"S": "restricted"},
        "country": {"S": "FR"},
        "trace": {"S": "Root=1-0-0"},
        "ended_at": {"N": str(AT + 650)},
        "proxy_type": {"S": "webext"},
        "proxy_nat": {"S": "unrestricted"},
        "proxy_country": {"S": "DE"},
    }
    return record(image | changes, name="MODIFY")


def test_an_answered_offer_tells_of_its_end_and_of_the_answer() -> None:
    found = read_record(answered())
    assert found.events == (
        OfferEvent(
            id=event_id("offer", "0123456789abcdef", at_ms=AT),
            at_ms=AT + 650,
            outcome="matched",
            nat="restricted",
            country="FR",
            proxy_type="webext",
            trace="Root=1-0-0",
            method="sqs",
            waited_ms=650,
        ),
        AnswerEvent(
            id=event_id("answer", "0123456789abcdef", at_ms=AT),
            at_ms=AT + 650,
            outcome="success",
            nat="unrestricted",
            country="DE",
            proxy_type="webext",
            trace="Root=1-0-0",
        ),
    )


def test_an_answered_offer_may_be_without_a_trace() -> None:
    assert [event.trace for event in read_record(answered(trace={"S": ""})).events] == [None, None]


@pytest.mark.parametrize("changes", [{"ended_at": {"S": "x"}}, {"sk": {"S": "x#c"}}])
def test_an_offer_that_cant_be_read_is_named(changes: dict[str, Any]) -> None:
    found = read_record(answered(**changes))
    assert (found.events, len(found.bad)) == ((), 1)


def test_another_change_tells_of_nothing() -> None:
    for change in (answered(state={"S": "matched"}), answered(pk={"S": "waiting#restricted"})):
        assert (read_record(change).events, read_record(change).bad) == ((), ())
