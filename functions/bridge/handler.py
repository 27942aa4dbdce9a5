"""Forwards over routes: SQS events in, partial batch responses out. What goes over is in sluice.federation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bridge.parts import BridgeParts
from sluice.aws.metrics import publish
from sluice.aws.records import process
from sluice.errors import HeldBack, NotDelivered, SenderFault, SluiceError
from sluice.federation.forwarder import HELD_BACK, Outcome, shared_out
from sluice.federation.links.registry import Forward
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


@dataclass(slots=True)
class _Reports:
    """By position, what is to be said of a message: an error, or nothing where it is done."""

    errors: dict[int, SluiceError] = field(default_factory=dict)

    def add(self, outcome: Outcome, route: Forward, positions: Sequence[int]) -> None:
        """What became of one route's share of the batch."""
        for place, reason in outcome.failed.items():
            waits = outcome.outage is not None or reason == HELD_BACK
            self.errors[positions[place]] = HeldBack(reason) if waits else NotDelivered(reason)
        for place, drop in outcome.drops.items():
            if route.bridge.src_is_queue:
                self.errors[positions[place]] = Dropped(f"dropped by route {route.bridge.name}: {drop.reason}")
        self.errors.update((positions[place], fault) for place, fault in outcome.refused.items())


def handler(event: dict[str, Any], context: LambdaContext) -> PartialItemFailureResponse:
    """Forwards a batch: the records of one event are of one queue, which one route reads, or several share."""
    queue = event["Records"][0]["eventSourceARN"].rsplit(":", 1)[1]
    messages = [Message.of_lambda(record) for record in event["Records"]]
    reports = _Reports()
    routes = parts().routes(queue)
    if not routes:
        reports.errors = {position: HeldBack(NO_ROUTE) for position in range(len(messages))}
    for route, positions in zip(routes, shared_out(messages, len(routes)), strict=True) if routes else ():
        outcome = parts().forward([messages[position] for position in positions], route, queue=queue)
        _publish(outcome, route)
        reports.add(outcome, route, positions)
    errors = {messages[position].message_id: error for position, error in reports.errors.items()}

    def report(record: SQSRecord) -> None:
        error = errors.get(record.message_id)
        if error is not None:
            raise error

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
    if outcome.lag_ms:
        publish(SERVICE, {"LagMs": outcome.lag_ms})  # of all routes together, for an alarm: routes come and go
    if outcome.outage is not None:
        publish(SERVICE, {"PeerNotReached": 1})  # an alarm holds on to it
        logger.warning("PeerNotReached", route=route.bridge.name, error=str(outcome.outage))
    for drop in list(outcome.drops.values())[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, route=route.bridge.name)
