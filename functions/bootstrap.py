"""Shared bootstrap of the Lambda functions: reads settings and events, reports failed messages, sends operations.

Importing this module has no side effects. A handler creates its dependencies at the first invocation of its execution
environment.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.aws.clients import calls, make_client, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import REDELIVERY_DELAYS_S, Batch, Reporter
from sluice.aws.shutdown import call_at_shutdown
from sluice.codec import encode
from sluice.errors import BadRequest, BadSetting
from sluice.message import Message
from sluice.operations import READER, Operation, parse_request
from sluice.settings import STORED_NAMES, Settings

S = TypeVar("S", bound=Settings)


def read_settings(settings_type: type[S]) -> S:
    """Read a function's settings from environment variables and Parameter Store. Raises `BadSetting`."""
    return settings_type.read(os.environ, read_parameters)


def read_parameters(names: Sequence[str]) -> str:
    """Read a long text from up to ten parameters, which contain its parts in order. Raises `CallFailed`, `BadSetting`.

    The SSM client isn't kept, because a function reads its parameters only once, at its start.
    """
    with calls("GetParameters"):
        response = make_client("ssm").get_parameters(Names=list(names))
    parts = {parameter["Name"]: parameter["Value"] for parameter in response["Parameters"]}
    missing = [name for name in names if name not in parts]
    if missing:
        raise BadSetting(STORED_NAMES, f"there is no parameter {', '.join(missing)}")
    return "".join(parts[name] for name in names)


def parse_event(event: Any, context: LambdaContext, operations: Any) -> Any:
    """Parse an event as a queue's `Batch` or as an operation. Raises `BadRequest`.

    `operations` is the union of the accepted `Operation` types. If the function was invoked through its alias for
    readers, only read-only operations are accepted. Lambda doesn't identify the caller, but reports the invoked ARN,
    and IAM has checked the caller's permission for that ARN.
    https://docs.aws.amazon.com/lambda/latest/dg/python-context.html
    """
    # The seventh field of the ARN is the function's name. The optional eighth field is the alias.
    is_reader = context.invoked_function_arn.split(":")[7:] == [READER]
    batch = None if is_reader else Batch.try_parse(event)
    if batch is not None:
        return batch
    operation = parse_request(event, operations)
    if is_reader and not operation.only_reads:
        raise BadRequest(
            f"{operation.__struct_config__.tag}: these credentials may only read; changes need lambda:InvokeFunction "
            f"on the function itself, not on its alias {READER}"
        )
    return operation


def make_reporter(
    dead_letters_url: str,
    executor: Executor,
    *,
    redact: Callable[[Message], Message] = lambda message: message,
    redelivery_delays_s: tuple[int, ...] = REDELIVERY_DELAYS_S,
) -> Reporter:
    """Create the reporter of failed messages, which sends messages that can't succeed to the dead-letter queue."""
    return Reporter(
        dead_letters=DeadLetters(sqs_client(), dead_letters_url, redact),
        executor=executor,
        received=ReceivedQueues(sqs_client(), dead_letters_url),
        redelivery_delays_s=redelivery_delays_s,
    )


def send_operation(queue_url: str, operation: Operation[Any], *, delay_s: int = 0) -> None:
    """Send an operation to a function's queue, from which the function reads it. Raises `QueueGone` or `CallFailed`."""
    SqsQueues(sqs_client(), queue_url).send(queue_url, encode(operation).decode(), delay_s=delay_s)


def flush_at_shutdown(dependencies: Any, flush_dependencies: Callable[[Any], None]) -> Callable[[], None]:
    """Register a callback that flushes buffered data before the execution environment ends. Returns the callback.

    `dependencies` is the function, with a `cache`, that creates the objects to flush. Lambda accepts this registration
    only while the handler's module is imported.
    """

    def flush_if_created() -> None:
        if dependencies.cache_info().currsize:
            flush_dependencies(dependencies())

    call_at_shutdown(flush_if_created)
    return flush_if_created


def make_time_check(context: LambdaContext, *, reserve_ms: int) -> Callable[[], bool]:
    """Return a function that tells whether more than `reserve_ms` of the invocation's time remains."""
    return lambda: context.get_remaining_time_in_millis() > reserve_ms
