"""Faults with what is buried and what is counted that hostile input shows: each is expected to fail until mended."""

import json
from collections import Counter
from typing import Any

import pytest

from sluice.aws.dead_letters import outgoing
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.message import DeadLetter, Message, Value
from sluice.rendezvous.counts.events import OfferEvent, read_event
from sluice.rendezvous.counts.statistics import Count, tally
from tests.hostile.events import NOW_MS
from tests.hostile.strict_sqs import MAX_BYTES, refusal

KEY_BYTES = 1_024  # of a sort key, by DynamoDB
ITEM_BYTES = 400 * 1_024
ITEM_BYTES_A_NUMBER = 5


@pytest.mark.xfail(strict=True, reason="a message of the greatest size never becomes a dead letter with its reason")
@pytest.mark.parametrize("attributes", [0, 9, 10])
def test_a_message_of_the_greatest_size_can_be_a_dead_letter(attributes: int) -> None:
    """It comes again until SQS moves it without a word; of a FIFO queue, its group waits that long."""
    own = {f"n{number}": Value("String", "v") for number in range(attributes)}
    said = sum(len(name) + len("String") + len("v") for name in own)
    message = Message(message_id="m", body="b" * (MAX_BYTES - said), attributes=own)
    assert (
        refusal(outgoing(DeadLetter(message=message, reason="", source="")).fields() | {"MessageAttributes": {}})
        is None
    )
    letter = outgoing(DeadLetter(message=message, reason="Malformed: why", source="arn:aws:sqs:eu-central-1:1:q"))
    assert refusal(letter.fields()) is None


@pytest.mark.xfail(strict=True, reason="an event whose address is no key keeps its batch from being counted")
def test_what_an_event_is_remembered_by_is_a_key() -> None:
    """The transaction is refused as a whole, and with it the counts of all events that are in it."""
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
    asked: list[Any] = []

    class Client:
        def batch_get_item(self, *, RequestItems: Any) -> Any:  # noqa: N803 - the API's own
            asked.extend(key["sk"]["S"] for key in RequestItems["t"]["Keys"])
            return {"Responses": {}}

        def transact_write_items(self, **_: Any) -> None:
            """Takes all."""

    client: Any = Client()
    found = read_event(body)
    assert found is not None
    DynamoStatisticsStore(client, "t", lambda: NOW_MS).add([tally(found)])
    assert all(len(key.encode()) <= KEY_BYTES for key in asked)


@pytest.mark.xfail(strict=True, reason="some thousand events with labels of their own fill the counters for good")
def test_what_is_counted_has_so_many_labels_and_no_more() -> None:
    """A family is one item, which DynamoDB refuses from 400 KB on, and with it whatever is counted in one write."""
    sizes: Counter[str] = Counter()
    seen: set[Count] = set()
    for number in range(10_000):
        event = OfferEvent(id="i", at_ms=NOW_MS, outcome="denied", country=f"X{number:030}", method=f"m{number:030}")
        new = set(tally(event).counts) - seen
        seen |= new
        sizes.update({count.family: sum(map(len, count.values)) + ITEM_BYTES_A_NUMBER for count in new})
    assert max(sizes.values()) <= ITEM_BYTES
