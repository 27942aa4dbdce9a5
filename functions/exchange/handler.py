"""Routes what is published: SQS events in, partial batch responses out. Who gets what is in sluice.federation."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.exchange.parts import ExchangeParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.errors import HeldBack, NotDelivered
from sluice.federation.router import HELD_BACK
from sluice.federation.settings import ExchangeSettings
from sluice.message import Message

SERVICE = "exchange"
MAX_RECEIVES = 10  # a bound queue may refuse for a while
SAMPLED_DROPS = 3  # of a batch, in the log; all are counted

logger = Logger()


@cache
def parts() -> ExchangeParts:
    """Made at the environment's first call."""
    return ExchangeParts.make(ExchangeSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Routes a batch: the records of one event are of one ingress queue."""
    ingress = parts().ingress(event["Records"][0]["eventSourceARN"].rsplit(":", 1)[1])
    messages = [Message.of_lambda(record) for record in event["Records"]]
    outcome = parts().route(messages, ingress)
    publish(SERVICE, outcome.counts)
    for reason, number in Counter(drop.reason for drop in outcome.drops).items():
        publish(SERVICE, {"MessagesDropped": number}, dimensions={"reason": reason})
    for drop in outcome.drops[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, queue=drop.queue)
    for position, cause in outcome.undeliverable:
        parts().dead_letters.send(SQSRecord(event["Records"][position]), cause)
    positions = {message.message_id: position for position, message in enumerate(messages)}

    def report(record: SQSRecord) -> None:
        position = positions[record.message_id]
        if position in outcome.refused:
            raise outcome.refused[position]
        if position in outcome.failed:
            reason = outcome.failed[position]
            raise HeldBack(reason) if reason == HELD_BACK else NotDelivered(reason)

    return process(
        event,
        context,
        handle=report,
        dead_letters=parts().dead_letters,
        executor=parts().executor,
        max_receives=MAX_RECEIVES,
    )
