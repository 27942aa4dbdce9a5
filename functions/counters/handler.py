"""Counts rendezvous events: a table's stream in, from where it comes again out. What counts is in sluice.rendezvous."""

import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.counters.parts import CountersParts
from sluice.aws.metrics import publish
from sluice.errors import CallFailed
from sluice.message import DeadLetter, Message
from sluice.rendezvous.counts.stream import StreamRecord, read_record
from sluice.rendezvous.settings import CountersSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "counters"

logger = Logger()


@cache
def parts() -> CountersParts:
    """Put together at the environment's first call."""
    return CountersParts.make(CountersSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> "PartialItemFailureResponse":
    """Count and publish a batch. What is no event becomes a dead letter; a kind that we don't know is passed over."""
    records = [read_record(record) for record in event["Records"]]
    counted = parts().counting.count(records)
    done = buried(records[: counted.done], source=event["Records"][0]["eventSourceARN"])
    left = records[done:]
    told = sum(len(record.events) for record in records)
    publish(
        SERVICE,
        Counter(
            EventsCounted=counted.counted,
            EventsNotCounted=told - counted.counted,
            EventsPublished=counted.published,
        ),
    )
    if not left:
        return {"batchItemFailures": []}
    logger.warning("BatchComesAgain", records=len(left), reason=counted.reason)
    return {"batchItemFailures": [{"itemIdentifier": left[0].sequence_number}]}


def buried(records: Sequence[StreamRecord], *, source: str) -> int:
    """Make dead letters of what is no event; how many records, from the first on, needn't come again for that."""
    for place, record in enumerate(records):
        for bad in record.bad:
            message = Message(message_id=record.sequence_number, body=bad.body)
            letter = DeadLetter(message=message, reason=f"Malformed: {bad.reason}", source=source)
            try:
                parts().dead_letters.bury(letter)
            except CallFailed as error:
                logger.warning("DeadLetterNotSent", reason=str(error))
                return place
    return len(records)
