"""Looks after sessions: operators' requests, ticks and the schedule in, the state of sessions out.

A request and its reply are as `sluice.operations` has them; what may be asked is a `ControlOperation`.
"""

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.control.parts import ControlParts
from sluice.aws.metrics import publish
from sluice.aws.parameters import stored_text
from sluice.aws.records import Batch
from sluice.errors import BadConfiguration, BadSnapshot, Malformed
from sluice.message import Message
from sluice.operations import refusal_of, reply_of, request_of
from sluice.splitting.control import NoSuchSession
from sluice.splitting.operations import ControlOperation
from sluice.splitting.settings import ControlSettings

if TYPE_CHECKING:  # powertools' batches import asyncio, and are for a type's name
    from aws_lambda_powertools.utilities.batch.types import PartialItemFailureResponse

SERVICE = "control"
LAST_MS = 5_000  # before the function's end: nothing new is begun

logger = Logger()


@cache
def parts() -> ControlParts:
    """Made at the environment's first call."""
    return ControlParts.make(ControlSettings.read(os.environ, stored_text))


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Serve a batch of the control queue's messages, or one request."""
    batch = Batch.found_in(event)
    if batch is not None:
        return messages(batch, context)
    try:
        return reply_of(perform(request_of(event, ControlOperation), context))
    except BadConfiguration as error:
        return refusal_of(error)


def messages(batch: Batch, context: LambdaContext) -> "PartialItemFailureResponse":
    """Serve ticks, and what splitters ask for; a bad one becomes a dead letter."""

    def serve(message: Message) -> None:
        try:
            perform(request_of(message.body, ControlOperation), context)
        except NoSuchSession:
            # It ended between the splitter's asking and now.
            logger.info("SessionGone", body=message.body)
        except BadSnapshot:
            raise  # what we have stored can't be read: the sender isn't to blame, and the message may come again
        except BadConfiguration as error:
            raise Malformed(str(error)) from error

    return parts().reporter.serve(batch, serve)


def perform(operation: ControlOperation, context: LambdaContext) -> object:
    """Perform an operation; after one that changes the registry a tick is armed if anything is under way."""
    control = parts().control(may_go_on=lambda: context.get_remaining_time_in_millis() > LAST_MS)
    result = parts().performer(control).perform(operation)
    for queue_id, number in control.returned.items():
        publish(SERVICE, {"MessagesReturned": number}, dimensions={"queue": queue_id})
    if operation.changes:
        parts().arm_tick()
    return result
