"""Splits source queues: SQS events in, partial batch responses out. Who gets what is in sluice.splitting."""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.splitter.parts import SplitterParts
from sluice.aws.metrics import publish
from sluice.aws.parameters import stored_text
from sluice.aws.records import Batch
from sluice.splitting.routing.routed import EVENT, lines
from sluice.splitting.settings import SplitterSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "splitter"
# Receivers may be gone for a while: at two minutes a receive, this is twenty of them.
MAX_RECEIVES = 10

logger = Logger()


@cache
def parts() -> SplitterParts:
    """Made at the environment's first call."""
    return SplitterParts.make(SplitterSettings.read(os.environ, stored_text))


def handler(event: dict[str, Any], context: LambdaContext) -> "PartialItemFailureResponse":
    """Split a batch: the records of one event are of one source queue."""
    batch = Batch.parse(event)
    queue = parts().by_source[batch.queue]
    outcome = parts().split(batch.messages, queue)
    publish(SERVICE, outcome.counts, dimensions={"queue": queue.queue_id})
    for line in lines(outcome.routed) if outcome.routed else ():
        logger.info(EVENT, queue=queue.queue_id, routed=line)
    for session_id, number in outcome.forwarded.items():
        dimensions = {"queue": queue.queue_id, "session": session_id}
        publish(SERVICE, {"SessionMessages": number}, dimensions=dimensions)
    return parts().reporter.report(batch, outcome.failures, max_receives=MAX_RECEIVES)
