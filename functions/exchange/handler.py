"""Routes what is published: SQS events in, partial batch responses out. Who gets what is in sluice.federation."""

import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.exchange.parts import ExchangeParts
from sluice.aws.metrics import publish
from sluice.aws.records import Batch
from sluice.errors import CallFailed
from sluice.federation.settings import ExchangeSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "exchange"
MAX_RECEIVES = 10  # a bound queue may refuse for a while
SAMPLED_DROPS = 3  # of a batch, in the log; all are counted

logger = Logger()


@cache
def parts() -> ExchangeParts:
    """Made at the environment's first call."""
    return ExchangeParts.make(ExchangeSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> "PartialItemFailureResponse":
    """Routes a batch: the records of one event are of one ingress queue."""
    batch = Batch.parse(event)
    outcome = parts().route(batch.messages, parts().ingress(batch.queue))
    publish(SERVICE, outcome.counts)
    for reason, number in Counter(drop.reason for drop in outcome.drops).items():
        publish(SERVICE, {"MessagesDropped": number}, dimensions={"reason": reason})
    for drop in outcome.drops[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, queue=drop.queue)
    failures: dict[int, Exception] = dict(outcome.failures)
    for each in outcome.undeliverable:
        try:
            parts().reporter.bury_copy(batch, each.position, each.outgoing, queue=each.queue, reason=each.reason)
        except CallFailed as fault:
            failures[each.position] = fault
    parts().tell(outcome.absent)
    return parts().reporter.report(batch, failures, max_receives=MAX_RECEIVES)
