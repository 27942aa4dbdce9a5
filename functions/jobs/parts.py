"""Puts the jobs function together: adapters and clock, from its settings."""

from sluice.aws.clients import dynamodb_client, make_client, now_ms
from sluice.aws.pipeline.jobs import DynamoDesiredStates, EmrRuns
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.settings import JobsSettings


def reconciler_of(settings: JobsSettings) -> Reconciler:
    """Put together what an environment keeps between its invocations, with AWS behind it."""
    return Reconciler(
        catalogue=Catalogue(settings),
        runs=EmrRuns(
            client=make_client("emr-serverless"), application_id=settings.application_id, role_arn=settings.role_arn
        ),
        desired=DynamoDesiredStates(client=dynamodb_client(), table=settings.table),
        now_ms=now_ms,
    )
