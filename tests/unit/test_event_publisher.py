"""Events that SQS fails are sent once more where that costs the caller no wait, and else are lost, and counted."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from sluice.aws.rendezvous import event_publisher
from sluice.aws.rendezvous.event_publisher import EventPublisher
from sluice.rendezvous.counts.events import OfferEvent, event_id

URL = "https://sqs.eu-central-1.amazonaws.com/000000000000/ingress"


@dataclass
class Ingress:
    """An SQS client. `fails` are the entries that each request fails, by place; None is all of the request."""

    fails: list[Sequence[int] | None]
    requests: int = 0
    taken: list[str] = field(default_factory=list)  # ids of events

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[Any]) -> Any:  # noqa: N803  boto3's names
        self.requests += 1
        failed = self.fails.pop(0) if self.fails else ()
        if failed is None:
            raise EndpointConnectionError(endpoint_url=QueueUrl)
        self.taken += [json.loads(each["MessageBody"])["id"] for each in Entries if int(each["Id"]) not in failed]
        refused = [{"Id": str(place), "Code": "InternalError", "SenderFault": False} for place in failed]
        return {"Successful": [], "Failed": refused}


def event(number: int) -> OfferEvent:
    return OfferEvent(id=event_id("offer", str(number), at_ms=1), at_ms=1, outcome="denied", method="sqs")


@pytest.mark.parametrize(
    ("fails", "requests", "lost"),
    [
        ([], 2, 0),
        ([(3,)], 2, 0),  # what failed goes with what hadn't been sent
        ([(), (0, 1)], 3, 0),
        ([(3,), (0,)], 2, 1),
        ([None], 1, 12),
        ([(), None], 2, 2),
    ],
)
def test_single_entries_that_fail_are_sent_once_more(
    fails: list[Sequence[int] | None], requests: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingress = Ingress(fails)
    monkeypatch.setattr(event_publisher, "events_client", lambda: ingress)
    events = [event(number) for number in range(12)]
    assert EventPublisher(exchange="events", ingress_url=URL, site="here").publish(events) == lost
    assert (ingress.requests, len(ingress.taken), len(set(ingress.taken))) == (requests, 12 - lost, 12 - lost)
