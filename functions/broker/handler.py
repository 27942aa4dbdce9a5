"""Serves clients' offers over SQS. What happens is in sluice.rendezvous."""

import os
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.broker.parts import CLIENT_ID, BrokerParts
from sluice.aws.metrics import publish
from sluice.aws.records import Batch
from sluice.aws.shutdown import call_at_shutdown
from sluice.message import Message
from sluice.rendezvous.broker import OfferMessage
from sluice.rendezvous.settings import BrokerSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "broker"
# An offer that fails is stale when it comes again: then its queue is noted, to be swept.
OFFER_RECEIVES = 4


@cache
def parts() -> BrokerParts:
    """Put together at the environment's first call."""
    return BrokerParts.make(BrokerSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> "PartialItemFailureResponse":
    """Serve a batch of offers."""
    batch = Batch.parse(event)
    matchmaker = parts().matchmaker(len(batch.messages))
    served = parts().broker.serve(
        [offer_of(message) for message in batch.messages], matchmaker, executor=parts().reporter.executor
    )
    failures = {place: error for place, error in enumerate(served) if isinstance(error, Exception)}
    response = parts().reporter.report(batch, failures, max_receives=OFFER_RECEIVES)
    parts().pacing.flush()
    outcomes = Counter(str(outcome) for outcome in served if not isinstance(outcome, Exception))
    publish(SERVICE, outcomes)
    return response


def write_counts() -> None:
    """Write the counts of offers that this environment still holds back."""
    if parts.cache_info().currsize:
        parts().pacing.flush(at_shutdown=True)


def offer_of(message: Message) -> OfferMessage:
    """Read the message as the rendezvous sees it."""
    client_id = message.attributes.get(CLIENT_ID)
    return OfferMessage(
        client_id=(client_id.text if client_id else None) or "",
        body=message.body,
        sent_at_ms=message.sent_at_ms or 0,
        # Lambda's own trace is of the batch: it only links to its messages'.
        trace=message.trace_header,
        receives=message.receives,
    )


# At the import, since Lambda takes no registration later.
call_at_shutdown(write_counts)
