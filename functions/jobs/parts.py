"""Puts the jobs function together: adapters and clock, from its settings."""

from dataclasses import dataclass

from sluice.aws.clients import dynamodb_client, make_client, now_ms
from sluice.aws.pipeline.jobs import DynamoWishes, EmrRuns
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.operations import Pipeline
from sluice.pipeline.settings import JobsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsParts:
    """What an environment of the jobs function keeps between its invocations."""

    pipeline: Pipeline

    @classmethod
    def make(cls, settings: JobsSettings) -> "JobsParts":
        """With AWS behind it."""
        emr = make_client("emr-serverless")
        return cls(
            pipeline=Pipeline(
                catalogue=Catalogue(settings),
                runs=EmrRuns(client=emr, application_id=settings.application_id, role_arn=settings.role_arn),
                wishes=DynamoWishes(client=dynamodb_client(), table=settings.table),
                now_ms=now_ms,
            )
        )
