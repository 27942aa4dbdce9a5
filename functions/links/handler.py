"""Looks after exchanges, bindings, links and routes: operators' requests, peers' messages, ticks and the schedule in.

A request is one of `sluice.federation.operations`. What its asker did wrong comes back as a refusal.
"""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.links.parts import LinksParts
from sluice.aws.metrics import publish
from sluice.aws.parameters import stored_text
from sluice.aws.records import Batch
from sluice.errors import BadConfiguration, BadSnapshot, Malformed, QueueGone, SenderFault
from sluice.federation.dynamic_shell import Dynamics
from sluice.federation.links.messages import DynamicMessage, decode_control
from sluice.federation.links.registry import routes_down
from sluice.federation.operations import OPERATIONS, SweepSite
from sluice.federation.registrar import Registrar
from sluice.federation.settings import LinksSettings
from sluice.federation.upkeep import Upkeep
from sluice.message import Message
from sluice.operations import refusal_of, reply_of, request_of

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "links"
LAST_MS = 5_000  # before the function's end: nothing new is begun

logger = Logger()


@cache
def parts() -> LinksParts:
    """Made at the environment's first call."""
    return LinksParts.make(LinksSettings.read(os.environ, stored_text))


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Serve a batch of peers' messages or ticks, or one request."""
    batch = Batch.found_in(event)
    if batch is not None:
        return messages(batch, context)
    try:
        return reply_of(perform(event, context))
    except (BadConfiguration, SenderFault, QueueGone) as error:
        return refusal_of(error)


def messages(batch: Batch, context: LambdaContext) -> "PartialItemFailureResponse":
    """Serve what peers say, in order, or ticks and outages; a bad one becomes a dead letter."""

    def serve(message: Message) -> None:
        try:
            if batch.fifo:
                hear(message, context)
            else:
                perform(message.body, context)
        except BadSnapshot:
            raise  # what we have stored can't be read: the sender isn't to blame, and the message may come again
        except BadConfiguration as error:
            raise Malformed(str(error)) from error

    return parts().reporter.serve(batch, serve)


def hear(message: Message, context: LambdaContext) -> None:
    """One message of a peer."""
    registrar, control = _registrar(context), decode_control(message.body)
    dynamics, upkeep = parts().dynamics(registrar), parts().upkeep(registrar)
    if isinstance(control, DynamicMessage):
        dynamics.hear(control, sender_id=message.sender_id)
    else:
        registrar.hear(control, sender_id=message.sender_id)
        dynamics.sync()
    _after(registrar, dynamics, upkeep)


def perform(request: dict[str, Any] | str, context: LambdaContext) -> object:
    """One operation; after one that changes something, dynamic routes follow, and a tick is armed if need be."""
    operation = request_of(request, OPERATIONS)
    registrar = _registrar(context)
    dynamics, upkeep = parts().dynamics(registrar), parts().upkeep(registrar)
    sweeps = isinstance(operation, SweepSite)
    try:
        return parts().administration(registrar, dynamics, upkeep).perform(operation)
    finally:
        # A sweep that finds a bad declaration has done the rest.
        if operation.changes:
            dynamics.sync(heartbeat=sweeps)
            _after(registrar, dynamics, upkeep)
        if sweeps:
            _tell_of_routes(registrar)


def _tell_of_routes(registrar: Registrar) -> None:
    """How things stand, said at every sweep of a site that has routes: an alarm holds on to it."""
    registry = registrar.registry()
    if not registry.bridges:
        return
    down = routes_down(registry)
    publish(SERVICE, {"RoutesDown": len(down)})
    if down:
        logger.warning("RoutesDown", routes=down)


def _after(registrar: Registrar, dynamics: Dynamics, upkeep: Upkeep) -> None:
    for mended in upkeep.mended:
        logger.warning("Mended", what=mended.what, queue=mended.name, routes=mended.routes, lost=mended.lost)
        publish(SERVICE, {"Mended": 1, "MessagesLost": mended.lost})
    for reason, number in dynamics.ignored.items():
        publish(SERVICE, {"OpsIgnored": number}, dimensions={"reason": reason})
    parts().arm_tick(registrar, upkeep)


def _registrar(context: LambdaContext) -> Registrar:
    return parts().registrar(may_go_on=lambda: context.get_remaining_time_in_millis() > LAST_MS)
