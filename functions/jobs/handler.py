"""Reconciles the runs of the pipeline's jobs, on a schedule and at operators' requests.

`sluice.operations` defines the format of requests and replies. Each request is a `JobsOperation`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import parse_event, read_settings
from sluice.aws.clients import dynamodb_client, make_client, now_ms
from sluice.aws.metrics import publish
from sluice.aws.pipeline.endpoints import Ec2Endpoints
from sluice.aws.pipeline.jobs import DynamoDesiredStates, EmrRuns
from sluice.errors import BadConfiguration
from sluice.operations import build_error_reply, build_reply
from sluice.pipeline.catalogue import JobCatalogue
from sluice.pipeline.operations import JobOutcome, JobsOperation
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.runs import JobStep
from sluice.pipeline.settings import JobsSettings

SERVICE = "jobs"

logger = Logger()


@cache
def dependencies() -> Reconciler:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(JobsSettings)
    return Reconciler(
        catalogue=JobCatalogue(settings),
        runs=EmrRuns(
            client=make_client("emr-serverless"), application_id=settings.application_id, role_arn=settings.role_arn
        ),
        desired=DynamoDesiredStates(client=dynamodb_client(), table=settings.table),
        now_ms=now_ms,
        endpoints=Ec2Endpoints(client=make_client("ec2"), application_id=settings.application_id)
        if settings.endpoints
        else None,
    )


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Serve one request of an operator, or the schedule's request to reconcile all jobs."""
    try:
        operation = parse_event(event, context, JobsOperation)
        result = dependencies().apply(operation)
    except BadConfiguration as error:
        return build_error_reply(error)
    if isinstance(result, JobOutcome):
        report_outcome(result)
    elif isinstance(result, tuple):
        publish(SERVICE, count_problems(result))
        for outcome in result:
            report_outcome(outcome)
    return build_reply(result)


def count_problems(outcomes: Sequence[JobOutcome]) -> Mapping[str, float]:
    """Count the problems that a reconciliation of all jobs found, by alarm metric. Counts of zero are left out."""
    down = any(outcome.stream_is_down for outcome in outcomes)
    return +Counter(StreamsDown=int(down), JobsFailed=sum(outcome.failed for outcome in outcomes))


def report_outcome(outcome: JobOutcome) -> None:
    """Publish how many runs were started and cancelled, and log the change of the job if there was one."""
    counts = +Counter(RunsStarted=int(outcome.step is JobStep.START), RunsCancelled=len(outcome.cancelled))
    publish(SERVICE, counts, dimensions={"job": outcome.job})
    if counts:
        logger.info("JobRunsChanged", job=outcome.job, step=outcome.step, reason=outcome.reason, run=outcome.run)
