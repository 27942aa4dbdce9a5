"""Forwards over routes: SQS events in, partial batch responses out. What goes over is in sluice.federation."""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bridge.parts import BridgeParts
from sluice.aws.metrics import publish
from sluice.aws.records import Batch
from sluice.errors import HeldBack
from sluice.federation.forwarder import ForwardOutcome, shared_out
from sluice.federation.links.registry import Forward
from sluice.federation.settings import BridgeSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "bridge"
MAX_RECEIVES = 10  # of one message, while others go over: an outage counts for none
SAMPLED_DROPS = 3  # of a batch, in the log; all are counted
NO_ROUTE = "no route reads this queue, or not yet"

logger = Logger()


@cache
def parts() -> BridgeParts:
    """Made at the environment's first call."""
    return BridgeParts.make(BridgeSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> "PartialItemFailureResponse":
    """Forward a batch: the records of one event are of one queue, which one route reads, or several share."""
    batch = Batch.parse(event)
    routes = parts().routes(batch.queue)
    failures: dict[int, Exception] = {}
    if not routes:
        failures = dict.fromkeys(range(len(batch.messages)), HeldBack(NO_ROUTE))
    for route, positions in zip(routes, shared_out(batch.messages, len(routes)), strict=True):
        outcome = parts().forward([batch.messages[position] for position in positions], route, queue=batch.queue)
        _publish(outcome, route)
        failures |= {positions[place]: fault for place, fault in outcome.failures.items()}
    return parts().reporter.report(batch, failures, max_receives=MAX_RECEIVES)


def _publish(outcome: ForwardOutcome, route: Forward) -> None:
    of_route = {"route": route.bridge.name}
    counts = dict(outcome.counts)
    if counts.get("MessagesForwarded"):
        counts["LagMs"] = outcome.lag_ms
    publish(SERVICE, counts, dimensions=of_route)
    if outcome.lag_ms:
        publish(SERVICE, {"LagMs": outcome.lag_ms})  # of all routes together, for an alarm: routes come and go
    if outcome.outage is not None:
        publish(SERVICE, {"PeerNotReached": 1})  # an alarm holds on to it
        logger.warning("PeerNotReached", route=route.bridge.name, error=str(outcome.outage))
    for drop in list(outcome.drops.values())[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, route=route.bridge.name)
