"""Section `operations`: who is told of what, and from which figures on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import BadParameter
from stacks.sections.values import EMAIL, ROOT, Parse, flag, matching, number, optional, parsed

# CloudWatch alarms can't publish to FIFO topics.
TOPIC_ARN = re.compile(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}")
MAX_AGE_S = 14 * 24 * 60 * 60  # as long as SQS keeps a message


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsParameters:
    """Section `operations`. Ages and lags are of the oldest message, in seconds."""

    alarm_email: str | None = None  # who is told of alarms; it gets a message to confirm
    alarm_topic_arn: str | None = None  # or a topic of yours, which lets CloudWatch and EventBridge publish
    tracing: bool = False  # whether functions send segments to X-Ray; trace headers are passed on anyway
    offers_age_s: int = 10  # clients wait five
    queue_age_s: int = 300  # of every other queue that a function reads
    bridge_lag_s: int = 900  # of what routes forward
    pipeline_age_s: int = 900  # of the queue that the land job reads, where it streams; else a week
    denied_percent: int = 50  # of offers, over a quarter of an hour
    denied_least_offers: int = 20  # in five minutes: of fewer the rate says nothing
    dead_letters: int = 1


KEY = f"{ROOT}.operations"
PARSERS: Mapping[str, Parse] = {
    "alarm_email": optional(matching(EMAIL, "an e-mail address")),
    "alarm_topic_arn": optional(matching(TOPIC_ARN, "the ARN of an SNS standard topic")),
    "tracing": flag,
    "offers_age_s": number(1, MAX_AGE_S),
    "queue_age_s": number(1, MAX_AGE_S),
    "bridge_lag_s": number(1, MAX_AGE_S),
    "pipeline_age_s": number(1, MAX_AGE_S),
    "denied_percent": number(1, 100),
    "denied_least_offers": number(1, 1_000_000),
    "dead_letters": number(1, 1_000_000),
}


def read(given: Mapping[str, object]) -> OperationsParameters:
    """From all that is given, by dotted key. Raises `BadParameter`."""
    parameters = OperationsParameters(**parsed(given, KEY, PARSERS))
    if parameters.alarm_email is not None and parameters.alarm_topic_arn is not None:
        raise BadParameter(f"{KEY}.alarm_email", "either an address or alarm_topic_arn, not both")
    return parameters
