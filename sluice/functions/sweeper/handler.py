"""Deletes what is left over, every minute: a schedule's event in, how much was swept out."""

import os
from collections import Counter
from dataclasses import asdict
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.aws.metrics import publish
from sluice.functions.sweeper.parts import SweeperParts
from sluice.rendezvous.broker import OfferMetric
from sluice.rendezvous.settings import MeetingSettings

SERVICE = "sweeper"
LAST_MS = 10_000  # before the function's end: a page of deletions that has begun takes seconds


@cache
def parts() -> SweeperParts:
    """Put together at the environment's first call."""
    return SweeperParts.make(MeetingSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, int]:
    """Sweep once. Safe to run twice at once: a queue that is gone counts as swept by nobody."""
    sweeper = parts().sweeper(may_go_on=lambda: context.get_remaining_time_in_millis() > LAST_MS)
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
    return asdict(swept)
