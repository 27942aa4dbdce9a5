"""Deletes what is left over, every minute: a schedule's event in, or an operator's request, how much was swept out."""

import os
from collections import Counter
from dataclasses import asdict
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.sweeper.parts import SweeperParts
from sluice.aws.metrics import publish
from sluice.errors import BadRequest
from sluice.operations import refusal_of, reply_of, request_of
from sluice.rendezvous.broker import OfferMetric
from sluice.rendezvous.operations import ShowRendezvous, SweepAnswers, SweeperOperation
from sluice.rendezvous.settings import MeetingSettings
from sluice.rendezvous.sweeper import Swept

SERVICE = "sweeper"
LAST_MS = 10_000  # before the function's end: a page of deletions that has begun takes seconds


@cache
def parts() -> SweeperParts:
    """Put together at the environment's first call."""
    return SweeperParts.make(MeetingSettings.read(os.environ))


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
    return reply_of(parts().show(asked) if isinstance(asked, ShowRendezvous) else asdict(sweep(asked, context)))


def sweep(asked: SweepAnswers, context: LambdaContext) -> Swept:
    """Sweep, and publish how much."""
    sweeper = parts().sweeper(
        may_go_on=lambda: context.get_remaining_time_in_millis() > LAST_MS, answers_age_ms=asked.older_than_s * 1000
    )
    swept = sweeper.sweep()
    counts = Counter(
        {
            "AnswerQueuesSwept": swept.answer_queues,
            "MailboxesSwept": swept.mailboxes,
            "SweepsFailed": swept.failed,
            OfferMetric.DENIED: swept.denied,
            OfferMetric.TIMED_OUT: swept.timed_out,
        }
    )
    publish(SERVICE, +counts)  # of what isn't zero: a metric is paid for in each hour in which it is published
    return swept
