"""Deletes abandoned queues every minute, and when an operator requests it. Returns the number of deleted queues."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec import to_builtins

from functions.bootstrap import make_time_check, parse_event, read_settings
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, sqs_client
from sluice.aws.metrics import publish
from sluice.aws.queues import count_messages
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.aws.rendezvous.waiting import DynamoMailboxStore
from sluice.errors import BadRequest
from sluice.operations import build_error_reply, build_reply
from sluice.rendezvous.operations import ShowRendezvous, SweepAnswers, SweeperOperation, SweepView
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.settings import RendezvousSettings
from sluice.rendezvous.sweeper import Sweeper
from sluice.stages import add_stage_prefix

SERVICE = "sweeper"
TIME_RESERVE_MS = 10_000  # No page of deletions starts in the last ten seconds before the invocation's time-out.


@cache
def dependencies() -> Sweeper:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(RendezvousSettings)
    return Sweeper(
        site=make_dependencies(settings, threads=1),
        mailboxes=DynamoMailboxStore(dynamodb_client(), settings.table),
        executor=ThreadPoolExecutor(MAX_CONNECTIONS),
        depth=partial(count_messages, sqs_client()),
        answer_prefix=add_stage_prefix(ANSWER_QUEUE_PREFIX, settings.stage),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Delete abandoned queues, for the schedule or for an operator's request.

    Two sweeps may run at the same time. A queue that the other sweep has deleted isn't counted again.
    """
    request = event if "op" in event else to_builtins(SweepAnswers())
    try:
        operation: SweeperOperation = parse_event(request, context, SweeperOperation)
    except BadRequest as error:
        return build_error_reply(error)
    if isinstance(operation, ShowRendezvous):
        return build_reply(dependencies().show(operation))
    return build_reply(sweep(operation, context))


def sweep(operation: SweepAnswers, context: LambdaContext) -> SweepView:
    """Delete abandoned queues, and publish how many were deleted."""
    may_go_on = make_time_check(context, reserve_ms=TIME_RESERVE_MS)
    swept = dependencies().sweep(may_go_on=may_go_on, answers_age_ms=operation.older_than_s * 1000)
    counts = Counter(
        {
            "AnswerQueuesSwept": swept.answer_queues,
            "MailboxesSwept": swept.mailboxes,
            "SweepsFailed": swept.failed,
            End.OFFER_DENIED.value: swept.denied,
            End.OFFER_TIMED_OUT.value: swept.timed_out,
        }
    )
    publish(SERVICE, +counts)  # Zeros are left out, because AWS charges for each metric in each hour with a value.
    return swept
