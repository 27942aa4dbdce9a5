"""Deletes what is left over, every minute: a schedule's event in, or an operator's request, how much was swept out."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import read_settings, time_is_left
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, sqs_client
from sluice.aws.metrics import publish
from sluice.aws.queues import depth_of
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.aws.rendezvous.waiting import DynamoMailboxStore
from sluice.errors import BadRequest
from sluice.operations import refusal_of, reply_of, request_of
from sluice.rendezvous.operations import ShowRendezvous, SweepAnswers, SweeperOperation
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.settings import MeetingSettings
from sluice.rendezvous.sweeper import Sweeper, Swept
from sluice.stages import staged

SERVICE = "sweeper"
LAST_MS = 10_000  # before the function's end: a page of deletions that has begun takes seconds


@cache
def dependencies() -> Sweeper:
    """Make what this environment keeps, at its first call."""
    settings = read_settings(MeetingSettings)
    return Sweeper(
        site=make_dependencies(settings, threads=1),
        mailboxes=DynamoMailboxStore(dynamodb_client(), settings.table),
        executor=ThreadPoolExecutor(MAX_CONNECTIONS),
        depth=partial(depth_of, sqs_client()),
        answer_prefix=staged(ANSWER_QUEUE_PREFIX, settings.stage),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Sweep once, as the schedule asks, or do what an operator asks.

    Two sweeps may run at once: a queue that is gone counts as swept by nobody.
    """
    if "op" not in event:
        return asdict(sweep(SweepAnswers(), context))
    try:
        asked: SweeperOperation = request_of(event, SweeperOperation)
    except BadRequest as error:
        return refusal_of(error)
    return reply_of(dependencies().show(asked) if isinstance(asked, ShowRendezvous) else asdict(sweep(asked, context)))


def sweep(asked: SweepAnswers, context: LambdaContext) -> Swept:
    """Sweep, and publish how much."""
    may_go_on = time_is_left(context, last_ms=LAST_MS)
    swept = dependencies().sweep(may_go_on=may_go_on, answers_age_ms=asked.older_than_s * 1000)
    counts = Counter(
        {
            "AnswerQueuesSwept": swept.answer_queues,
            "MailboxesSwept": swept.mailboxes,
            "SweepsFailed": swept.failed,
            End.OFFER_DENIED.value: swept.denied,
            End.OFFER_TIMED_OUT.value: swept.timed_out,
        }
    )
    publish(SERVICE, +counts)  # of what isn't zero: a metric is paid for in each hour in which it is published
    return swept
