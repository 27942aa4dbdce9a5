"""Looks after the pipeline's job runs: operators' requests and the schedule in, what was done out.

A request is `{"op": …}`. What its asker did wrong comes back as `{"error": text}`, everything else as `{"result": …}`.
"""

import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.jobs.parts import JobsParts
from sluice.aws.metrics import publish
from sluice.errors import BadConfiguration
from sluice.pipeline.operations import Outcome, perform, stream_is_down
from sluice.pipeline.runs import Step
from sluice.pipeline.settings import JobsSettings

SERVICE = "jobs"

logger = Logger()


@cache
def parts() -> JobsParts:
    """Made at the environment's first call."""
    return JobsParts.make(JobsSettings.read(os.environ))


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serves one request; the schedule's is `look`."""
    try:
        answer = perform(parts().pipeline, event)
    except BadConfiguration as error:
        return {"error": str(error)}
    if event["op"] == "look":
        publish(SERVICE, gauges(answer.outcomes))
    for outcome in answer.outcomes:
        tell(outcome)
    return {"result": answer.result}


def gauges(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """How things stand, said at every look: alarms hold on to it, also to its absence."""
    jobs_failed = sum(outcome.decision.failed for outcome in outcomes)
    return {"StreamsDown": int(stream_is_down(outcomes)), "JobsFailed": jobs_failed}


def tell(outcome: Outcome) -> None:
    """Counts and logs what was done, where something was."""
    started, cancelled = outcome.decision.step is Step.START, len(outcome.decision.cancel)
    counts = +Counter(RunsStarted=int(started), RunsCancelled=cancelled)
    publish(SERVICE, counts, dimensions={"job": outcome.job})
    if counts:
        logger.info("JobRunsChanged", **outcome.document)
