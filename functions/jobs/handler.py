"""Looks after the pipeline's job runs: operators' requests and the schedule in, what was done out.

A request and its reply are as `sluice.operations` has them; what may be asked is a `JobsOperation`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import read_settings
from sluice.aws.clients import dynamodb_client, make_client, now_ms
from sluice.aws.metrics import publish
from sluice.aws.pipeline.jobs import DynamoDesiredStates, EmrRuns
from sluice.errors import BadConfiguration
from sluice.operations import build_error_reply, build_reply, parse_request
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.operations import JobOutcome, JobsOperation
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.runs import JobStep
from sluice.pipeline.settings import JobsSettings

SERVICE = "jobs"

logger = Logger()


@cache
def dependencies() -> Reconciler:
    """Make what this environment keeps, at its first call."""
    settings = read_settings(JobsSettings)
    return Reconciler(
        catalogue=Catalogue(settings),
        runs=EmrRuns(
            client=make_client("emr-serverless"), application_id=settings.application_id, role_arn=settings.role_arn
        ),
        desired=DynamoDesiredStates(client=dynamodb_client(), table=settings.table),
        now_ms=now_ms,
    )


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one request; the schedule's is to reconcile."""
    try:
        result = dependencies().perform(parse_request(event, JobsOperation))
    except BadConfiguration as error:
        return build_error_reply(error)
    if isinstance(result, JobOutcome):
        tell(result)
    elif isinstance(result, tuple):
        publish(SERVICE, gauges(result))
        for outcome in result:
            tell(outcome)
    return build_reply(result)


def gauges(outcomes: Sequence[JobOutcome]) -> Mapping[str, float]:
    """Say what is wrong, whenever all jobs are reconciled: alarms hold on to it. What is well has no metric."""
    down = any(outcome.stream_is_down for outcome in outcomes)
    return +Counter(StreamsDown=int(down), JobsFailed=sum(outcome.failed for outcome in outcomes))


def tell(outcome: JobOutcome) -> None:
    """Count and log what was done, where something was."""
    counts = +Counter(RunsStarted=int(outcome.step is JobStep.START), RunsCancelled=len(outcome.cancelled))
    publish(SERVICE, counts, dimensions={"job": outcome.job})
    if counts:
        logger.info("JobRunsChanged", job=outcome.job, step=outcome.step, reason=outcome.reason, run=outcome.run)
