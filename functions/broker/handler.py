"""Offers and their time-outs: SQS events in, partial batch responses out. What happens is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.broker.parts import BrokerParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.rendezvous.broker import Post
from sluice.rendezvous.settings import BrokerSettings
from sluice.rendezvous.timeouts import Tick

SERVICE = "broker"
# An offer that fails is stale when it would come again: it is dead-lettered at once.
OFFER_RECEIVES = 1


@cache
def parts() -> BrokerParts:
    """Made at the environment's first call."""
    return BrokerParts.make(BrokerSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Serves a batch of offers, or of ticks: the records of one event are of one queue."""
    queue = event["Records"][0]["eventSourceARN"].rsplit(":", 1)[1]
    return ticks(event, context) if queue == parts().timeouts_queue_name else offers(event, context)


def offers(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Serves a batch of offers."""
    witness = parts().witnesses.witness()
    broker = parts().broker(witness)
    outcomes: Counter[str] = Counter()

    def serve(record: SQSRecord) -> None:
        outcomes[broker.serve(post_of(record))] += 1

    response = process(
        event,
        context,
        handle=serve,
        dead_letters=parts().dead_letters,
        executor=parts().executor,
        max_receives=OFFER_RECEIVES,
    )
    broker.matchmaker.candidates.note_demand()
    outcomes.update(parts().witnesses.publish(witness))
    publish(SERVICE, outcomes)
    return response


def ticks(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Times out what is due."""
    witness = parts().witnesses.witness()
    time_outs = parts().time_outs(witness)
    outcomes: Counter[str] = Counter()

    def serve(record: SQSRecord) -> None:
        outcomes["OffersTimedOut"] += time_outs.handle(Tick.parse(record.body))

    response = process(event, context, handle=serve, dead_letters=parts().dead_letters, executor=parts().executor)
    outcomes.update(parts().witnesses.publish(witness))
    publish(SERVICE, outcomes)
    return response


def post_of(record: SQSRecord) -> Post:
    """The message as the rendezvous sees it."""
    client_id = record.message_attributes["ClientID"]
    return Post(
        client_id=(client_id.string_value or "") if client_id else "",
        body=record.body,
        sent_at_ms=int(record.attributes.sent_timestamp),
        # Lambda's own trace is of the batch: it only links to its messages'.
        trace=record.attributes.aws_trace_header,
    )
