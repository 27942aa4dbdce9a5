"""Offers and their time-outs: SQS events in, partial batch responses out. What happens is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.broker.parts import BrokerParts
from sluice.aws.metrics import publish
from sluice.aws.records import Batch
from sluice.message import Message
from sluice.rendezvous.broker import OfferMessage, OfferMetric, TimeoutTick
from sluice.rendezvous.settings import BrokerSettings

SERVICE = "broker"
# An offer that fails is stale when it would come again: it is dead-lettered at once.
OFFER_RECEIVES = 1


@cache
def parts() -> BrokerParts:
    """Put together at the environment's first call."""
    return BrokerParts.make(BrokerSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Serve a batch of offers, or of ticks: the records of one event are of one queue."""
    batch = Batch.parse(event)
    return ticks(batch) if batch.queue == parts().timeouts_queue_name else offers(batch)


def offers(batch: Batch) -> PartialItemFailureResponse:
    """Serve a batch of offers. Raises `CallFailed` where the demand can't be noted."""
    broker, matchmaker = parts().broker, parts().matchmaker()
    outcomes: Counter[str] = Counter()

    def serve(message: Message) -> None:
        outcomes[broker.serve(offer_of(message), matchmaker)] += 1

    response = parts().reporter.serve(batch, serve, max_receives=OFFER_RECEIVES)
    matchmaker.note_demand()
    publish(SERVICE, outcomes + parts().recorder.publish())
    return response


def ticks(batch: Batch) -> PartialItemFailureResponse:
    """Time out what is due."""
    outcomes: Counter[str] = Counter()

    def serve(message: Message) -> None:
        outcomes[OfferMetric.TIMED_OUT] += parts().time_outs.handle(TimeoutTick.parse(message.body))

    response = parts().reporter.serve(batch, serve)
    outcomes.update(parts().recorder.publish())
    publish(SERVICE, outcomes)
    return response


def offer_of(message: Message) -> OfferMessage:
    """Read the message as the rendezvous sees it."""
    client_id = message.attributes.get("ClientID")
    return OfferMessage(
        client_id=(client_id.text if client_id else None) or "",
        body=message.body,
        sent_at_ms=message.sent_at_ms or 0,
        # Lambda's own trace is of the batch: it only links to its messages'.
        trace=message.trace_header,
    )
