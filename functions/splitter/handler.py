"""Splits source queues: SQS events in, partial batch responses out. Who gets what is in sluice.splitting."""

import os
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.splitter.parts import SplitterParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.errors import HeldBack, NotDelivered
from sluice.message import Message
from sluice.splitting.settings import SplitterSettings
from sluice.splitting.splitter import HELD_BACK

SERVICE = "splitter"
# Receivers may be gone for a while: at two minutes a receive, this is twenty of them.
MAX_RECEIVES = 10


@cache
def parts() -> SplitterParts:
    """Made at the environment's first call."""
    return SplitterParts.make(SplitterSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Splits a batch: the records of one event are of one source queue."""
    queue = parts().queue_of(event["Records"][0]["eventSourceARN"].rsplit(":", 1)[1])
    messages = [Message.of_lambda(record) for record in event["Records"]]
    outcome = parts().split(messages, queue)
    publish(SERVICE, outcome.counts, dimensions={"queue": queue.queue_id})
    for session_id, number in outcome.forwarded.items():
        dimensions = {"queue": queue.queue_id, "session": session_id}
        publish(SERVICE, {"SessionMessages": number}, dimensions=dimensions)
    failures = {messages[position].message_id: reason for position, reason in outcome.failed.items()}

    def report(record: SQSRecord) -> None:
        reason = failures.get(record.message_id)
        if reason is not None:
            raise HeldBack(reason) if reason == HELD_BACK else NotDelivered(reason)

    return process(
        event,
        context,
        handle=report,
        dead_letters=parts().dead_letters,
        executor=parts().executor,
        max_receives=MAX_RECEIVES,
    )
