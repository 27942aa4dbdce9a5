"""The table's stream tells of events: those that functions wrote down, and those that an answered offer is."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import Malformed
from sluice.rendezvous.counts.events import AnswerEvent, Event, OfferEvent, PollEvent, derive_event_id
from sluice.rendezvous.counts.stream import read_events

AT = 1_700_000_000_000
SEQUENCE = "4421584500000000017450439091"
OFFER = OfferEvent(id=derive_event_id("offer", "c", at_ms=AT), at_ms=AT, outcome="denied", country="DE", method="sqs")
POLLS = PollEvent(
    id=derive_event_id("poll", "p", at_ms=AT),
    at_ms=AT,
    outcome="idle",
    polls=3,
    addresses=("a", "b"),
    proxy_type="webext",
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


def listed(*events: Event) -> str:
    return f"[{','.join(event.to_json(site='s') for event in events)}]"


def test_an_item_tells_of_its_events_in_order() -> None:
    assert read_events(told(listed(OFFER, POLLS))) == [OFFER, POLLS]


def test_a_kind_of_the_future_is_passed_over() -> None:
    future = listed(OFFER).replace('"kind":"offer"', '"kind":"of the future"')
    assert read_events(told(f"{future[:-1]},{listed(POLLS)[1:]}")) == [POLLS]


NO_LIST = st.text().filter(lambda text: not text.strip().startswith("["))  # an empty list is one


@given(st.sampled_from(["", "[", "5", "null", "{}", "[5]", '[{"kind":"offer"}]', "[" * 100_000]) | NO_LIST)
def test_what_is_no_list_of_events_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        read_events(told(text))


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
    assert read_events(answered()) == [
        OfferEvent(
            id=derive_event_id("offer", "0123456789abcdef", at_ms=AT),
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
            id=derive_event_id("answer", "0123456789abcdef", at_ms=AT),
            at_ms=AT + 650,
            outcome="success",
            nat="unrestricted",
            country="DE",
            proxy_type="webext",
            trace="Root=1-0-0",
        ),
    ]


def test_an_answered_offer_may_be_without_a_trace() -> None:
    assert [event.trace for event in read_events(answered(trace={"S": ""}))] == [None, None]


@pytest.mark.parametrize("changes", [{"ended_at": {"S": "x"}}, {"sk": {"S": "x#c"}}])
def test_an_offer_that_cant_be_read_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        read_events(answered(**changes))


def test_another_change_tells_of_nothing() -> None:
    for change in (answered(state={"S": "matched"}), answered(pk={"S": "waiting#restricted"})):
        assert read_events(change) == ()
