"""Manages sessions of split queues: serves operators' requests, ticks and the schedule, and stores the sessions' state.

`sluice.operations` defines the format of requests and replies. Each request is a `ControlOperation`.
"""

import secrets
import string
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import make_reporter, make_time_check, parse_event, read_settings, send_operation
from sluice.aws.clients import build_queue_arn_prefix, dynamodb_client, lambda_client, make_client, now_ms, sqs_client
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.aws.splitting.consumers.lambda_functions import LambdaSplitterTriggers
from sluice.aws.splitting.consumers.targets import AwsConsumers, EksClusters
from sluice.aws.splitting.queues import SplitQueues
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.errors import BadConfiguration, BadSnapshot, Malformed
from sluice.message import Message
from sluice.operations import build_error_reply, build_reply, parse_request
from sluice.splitting.consumers.temporary_queues import TOKEN_CHARACTERS
from sluice.splitting.control import Control, NoSuchSession, RegistryCache, compute_next_tick_s
from sluice.splitting.jq_runner import compile_problem
from sluice.splitting.operation_handler import OperationHandler
from sluice.splitting.operations import ControlOperation, SweepQueues, TickSessions
from sluice.splitting.pointing import Pointing
from sluice.splitting.settings import ControlSettings

SERVICE = "control"
TIME_RESERVE_MS = 5_000  # No new work starts in the last five seconds before an invocation's time-out.
ALPHABET = string.ascii_lowercase + string.digits

logger = Logger()
client_of = cache(make_client)  # Each AWS client is created when a target first needs it.
clusters = EksClusters(client=client_of)  # The EKS API is queried when a target first needs a cluster.


class ControlDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment of the control function keeps between invocations."""

    settings: ControlSettings
    registry_cache: RegistryCache
    queues: SplitQueues
    reporter: Reporter

    def control(self, context: LambdaContext) -> Control:
        """Create the session manager for one invocation."""
        return Control(
            registry_cache=self.registry_cache,
            queues=self.queues,
            pointing=Pointing(
                repointed={queue.queue_id: queue for queue in self.settings.repointed},
                consumers=AwsConsumers(
                    client=client_of,
                    arn_prefix=build_queue_arn_prefix(self.settings.dead_letters_url),
                    now_ms=now_ms,
                    cluster=clusters,
                ),
                triggers=LambdaSplitterTriggers(lambda_client),
                holder=new_token(),
                now_ms=now_ms,
                warn=lambda what, queue_id, reason: logger.warning(what, queue=queue_id, reason=reason),
            ),
            settings=self.settings,
            now_ms=now_ms,
            new_token=new_token,
            may_go_on=make_time_check(context, reserve_ms=TIME_RESERVE_MS),
        )

    def make_operation_handler(self, control: Control) -> OperationHandler:
        """Create the operation handler for the invocation that `control` serves."""
        return OperationHandler(
            control=control,
            compile_problem=compile_problem,
            counts=self.registry_cache.store.read_counts,
            url=self.queues.url,
        )

    def arm_tick(self) -> None:
        """Send a delayed tick, unless an earlier one is pending or nothing in the registry needs a later check."""
        delay_s = compute_next_tick_s(self.registry_cache.load())
        if delay_s is None:
            return
        at_ms = now_ms()
        if self.registry_cache.store.claim_tick(due_at_ms=at_ms + delay_s * 1000, now_ms=at_ms):
            send_operation(self.settings.control_queue_url, TickSessions(), delay_s=delay_s)


@cache
def dependencies() -> ControlDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(ControlSettings)
    return ControlDependencies(
        settings=settings,
        registry_cache=RegistryCache(DynamoRegistryStore(dynamodb_client(), settings.table)),
        queues=SplitQueues(sqs_client(), settings.dead_letters_url),
        # The executor has one thread: all messages change one registry, and parallel writes would conflict.
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(1)),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Serve a batch of the control queue's messages, or one direct request of an operator or the schedule."""
    try:
        parsed = parse_event(event, context, ControlOperation)
        if not isinstance(parsed, Batch):
            return build_reply(apply_operation(parsed, context))
    except BadConfiguration as error:
        return build_error_reply(error)
    return handle_batch(parsed, context)


def handle_batch(batch: Batch, context: LambdaContext) -> BatchResponse:
    """Serve the messages of a batch: ticks and splitters' requests. A malformed message becomes a dead letter."""

    def apply_message(message: Message) -> None:
        try:
            apply_operation(parse_request(message.body, ControlOperation), context)
        except NoSuchSession:
            # The session ended after the splitter had sent this request, so the request is obsolete.
            logger.info("SessionGone", body=message.body)
        except BadSnapshot:
            raise  # The site's own state is unreadable, which isn't the message's fault, so the message is redelivered.
        except BadConfiguration as error:
            raise Malformed(str(error)) from error

    return dependencies().reporter.serve(batch, apply_message)


def apply_operation(operation: ControlOperation, context: LambdaContext) -> object:
    """Apply an operation. If it may have changed the registry, schedule the next tick."""
    made = dependencies()
    control = made.control(context)
    result = made.make_operation_handler(control).apply(operation)
    for queue_id, number in control.returned.items():
        publish(SERVICE, {"MessagesReturned": number}, dimensions={"queue": queue_id})
    if isinstance(operation, SweepQueues) and control.pointing.repointed:  # The sweep runs once a minute.
        away = sum(split.is_consumer_away for split in control.view().splits.values())
        publish(SERVICE, {"ConsumersAway": away})  # An alarm watches this metric.
    if operation.changes:
        made.arm_tick()
    return result


def new_token() -> str:
    """Return a random token of twelve letters and digits: 62 bits."""
    return "".join(secrets.choice(ALPHABET) for _ in range(TOKEN_CHARACTERS))
