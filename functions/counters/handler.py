"""Counts rendezvous events: SQS events in, partial batch responses out. What counts is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.counters.parts import CountersParts
from sluice.aws.metrics import publish
from sluice.aws.records import Batch
from sluice.errors import Malformed, NotDelivered
from sluice.rendezvous.counts.events import Event, read_event
from sluice.rendezvous.settings import TableSettings

SERVICE = "counters"
MAX_RECEIVES = 10  # the table may refuse for a while


@cache
def parts() -> CountersParts:
    """Put together at the environment's first call."""
    return CountersParts.make(TableSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Count a batch. What is no event becomes a dead letter; a kind that we don't know is passed over."""
    batch = Batch.parse(event)
    events: dict[int, Event] = {}
    failures: dict[int, Exception] = {}
    for position, message in enumerate(batch.messages):
        try:
            found = read_event(message.body)
        except Malformed as fault:
            failures[position] = fault
        else:
            if found is not None:
                events[position] = found
    uncounted = parts().counting.count(list(events.values()))
    not_delivered = {
        position: NotDelivered(uncounted[each.id]) for position, each in events.items() if each.id in uncounted
    }
    publish(SERVICE, Counter(EventsCounted=len(events) - len(not_delivered), EventsNotCounted=len(not_delivered)))
    return parts().reporter.report(batch, failures | not_delivered, max_receives=MAX_RECEIVES)
