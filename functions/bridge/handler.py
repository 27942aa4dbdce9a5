"""Forwards over routes: SQS events in, partial batch responses out. What goes over is in sluice.federation."""

import os
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.aws.bridge_parts import BridgeParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.errors import HeldBack, NotDelivered, SenderFault
from sluice.federation.forwarder import HELD_BACK, Outcome
from sluice.federation.registry import Forward
from sluice.federation.settings import BridgeSettings
from sluice.message import Message

SERVICE = "bridge"
MAX_RECEIVES = 10  # of one message, while others go over: an outage counts for none
SAMPLED_DROPS = 3  # of a batch, in the log; all are counted
NO_ROUTE = "no route reads this queue, or not yet"

logger = Logger()


class Dropped(SenderFault):
    """A queue route's message that may not go over: it was in nobody's hands yet, so it isn't thrown away."""


@cache
def parts() -> BridgeParts:
    """Made at the environment's first call."""
    return BridgeParts.make(BridgeSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Forwards a batch: the records of one event are of one queue, and so of one route."""
    queue = event["Records"][0]["eventSourceARN"].rsplit(":", 1)[1]
    messages = [Message.of_lambda(record) for record in event["Records"]]
    route = parts().route(queue)
    if route is None:
        outcome = Outcome(failed=dict.fromkeys(range(len(messages)), NO_ROUTE))
    else:
        outcome = parts().forward(messages, route, queue=queue)
        _publish(outcome, route)
    waits = route is None or outcome.outage is not None
    positions = {message.message_id: position for position, message in enumerate(messages)}

    def report(record: SQSRecord) -> None:
        position = positions[record.message_id]
        if position in outcome.refused:
            raise outcome.refused[position]
        if position in outcome.drops and route is not None and route.bridge.src_is_queue:
            raise Dropped(f"dropped by route {route.bridge.name}: {outcome.drops[position].reason}")
        if position in outcome.failed:
            reason = outcome.failed[position]
            raise HeldBack(reason) if waits or reason == HELD_BACK else NotDelivered(reason)

    return process(
        event,
        context,
        handle=report,
        dead_letters=parts().dead_letters,
        executor=parts().executor,
        max_receives=MAX_RECEIVES,
    )


def _publish(outcome: Outcome, route: Forward) -> None:
    of_route = {"route": route.bridge.name}
    counts = dict(outcome.counts)
    if counts.get("MessagesForwarded"):
        counts["LagMs"] = outcome.lag_ms
    publish(SERVICE, counts, dimensions=of_route)
    if outcome.outage is not None:
        publish(SERVICE, {"PeerNotReached": 1})  # an alarm holds on to it
        logger.warning("PeerNotReached", route=route.bridge.name, error=str(outcome.outage))
    for drop in list(outcome.drops.values())[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message=drop.message_id, reason=drop.reason, route=route.bridge.name)
