"""Faults with what is buried and what is counted that hostile input shows: each is expected to fail until mended."""

import json
from collections import Counter

import pytest

from sluice.aws.dead_letters import build_dead_letter
from sluice.message import DeadLetter, Message, Value
from sluice.rendezvous.counts.events import OfferEvent, parse_event
from sluice.rendezvous.counts.statistics import tally
from tests.hostile.events import NOW_MS
from tests.hostile.strict_sqs import MAX_BYTES, refusal

KEY_BYTES = 1_024  # of a sort key, by DynamoDB
ITEM_BYTES = 1_024  # that one write unit has
ITEM_BYTES_A_NUMBER = 5


@pytest.mark.parametrize("attributes", [0, 9, 10])
def test_a_message_of_the_greatest_size_can_be_a_dead_letter(attributes: int) -> None:
    """It would come again until SQS moves it without a word; of a FIFO queue, its group would wait that long."""
    own = {f"n{number}": Value("String", "v") for number in range(attributes)}
    said = sum(len(name) + len("String") + len("v") for name in own)
    message = Message(message_id="m", body="b" * (MAX_BYTES - said), attributes=own)
    assert (
        refusal(
            build_dead_letter(DeadLetter(message=message, reason="", source="")).fields() | {"MessageAttributes": {}}
        )
        is None
    )
    letter = build_dead_letter(
        DeadLetter(message=message, reason="Malformed: why", source="arn:aws:sqs:eu-central-1:1:q")
    )
    assert refusal(letter.fields()) is None


def test_what_an_event_is_remembered_by_is_a_key() -> None:
    """A write with another key is refused, and with it the counts of all events that follow."""
    body = json.dumps(
        {
            "kind": "poll",
            "id": "01J00000000000000000000000",
            "site": "S",
            "outcome": "idle",
            "at": "2026-01-01T00:00:00Z",
            "address": "x" * 2_000,
        }
    )
    found = parse_event(json.loads(body))
    assert found is not None
    counted = tally(found)
    assert counted is not None
    assert all(len(address.encode()) <= KEY_BYTES for address in counted.addresses)


def test_a_row_has_so_many_labels_and_no_more() -> None:
    """An event has labels of its own where it was told of by nobody of ours: each is in a row of its own."""
    sizes: Counter[str] = Counter()
    for number in range(10_000):
        event = OfferEvent(id="i", at_ms=NOW_MS, outcome="denied", country=f"X{number:030}", method=f"m{number:030}")
        found = tally(event)
        assert found is not None
        sizes[found.row] += sum(len(count) + ITEM_BYTES_A_NUMBER for count in found.counts)
    assert max(sizes.values()) <= ITEM_BYTES
