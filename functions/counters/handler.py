"""Counts rendezvous events: SQS events in, partial batch responses out. What counts is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.counters.parts import CountersParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.errors import Malformed, NotDelivered
from sluice.rendezvous.counts.events import Event, read_event
from sluice.rendezvous.settings import TableSettings

SERVICE = "counters"
MAX_RECEIVES = 10  # the table may refuse for a while


@cache
def parts() -> CountersParts:
    """Made at the environment's first call."""
    return CountersParts.make(TableSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Counts a batch. What is no event becomes a dead letter; a kind that we don't know is passed over."""
    read = {record["messageId"]: _read(record["body"]) for record in event["Records"]}
    events = [found for found in read.values() if isinstance(found, Event)]
    failed = parts().counting.count(events)

    def report(record: SQSRecord) -> None:
        found = read[record.message_id]
        if isinstance(found, Malformed):
            raise found
        if found is not None and found.id in failed:
            raise NotDelivered(failed[found.id])

    publish(SERVICE, Counter(EventsCounted=len(events) - len(failed), EventsNotCounted=len(failed)))
    return process(
        event,
        context,
        handle=report,
        dead_letters=parts().dead_letters,
        executor=parts().executor,
        max_receives=MAX_RECEIVES,
    )


def _read(body: str) -> Event | Malformed | None:
    try:
        return read_event(body)
    except Malformed as fault:
        return fault
