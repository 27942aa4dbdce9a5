"""What the jobs function is told by its environment variables: everything that makes a job what it is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sluice.pipeline.jobs import Landing, Places, Program, Reach, TableFormat, Workers
from sluice.pipeline.schedule import Daily
from sluice.settings import Variables

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """How jobs run, as the stack writes it: JSON with these fields."""

    streaming: bool  # whether the land job runs where nobody has said otherwise
    trigger_s: int
    failed_attempts_per_hour: int
    restart_after_failure_s: int
    shutdown_grace_s: int
    batch_attempts: int
    batch_timeout_minutes: int
    statistics_at: str | None
    compaction_at: str | None
    compaction_days: int

    @classmethod
    def parse(cls, text: str) -> "JobLimits":
        """Raises ValueError."""
        return _fields(cls, text)

    @property
    def statistics(self) -> Daily | None:
        """When the statistics of the day before are due."""
        return Daily.parse(self.statistics_at) if self.statistics_at else None

    @property
    def compaction(self) -> Daily | None:
        """When compaction is due."""
        return Daily.parse(self.compaction_at) if self.compaction_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings:
    """Settings of the jobs function."""

    application_id: str
    role_arn: str
    table: str
    ingress_url: str  # where replayed messages go
    program: Program
    landing: Landing
    limits: JobLimits

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "JobsSettings":
        """From the function's environment."""
        variables = Variables(environment)
        table_format = variables.parsed("TABLE_FORMAT", TableFormat)
        places = Places(root=f"s3://{variables.text('PIPELINE_BUCKET')}", table_format=table_format)
        limits = variables.parsed("JOB_LIMITS", JobLimits.parse)
        return cls(
            application_id=variables.text("APPLICATION_ID"),
            role_arn=variables.text("JOB_ROLE_ARN"),
            table=variables.text("PIPELINE_TABLE"),
            ingress_url=variables.text("INGRESS_URL"),
            program=Program(
                entry_point=variables.text("ENTRY_POINT"),
                environment=variables.text("ENVIRONMENT_ARCHIVE"),
                code=variables.text("CODE_ARCHIVE"),
                python=variables.text("JOB_PYTHON"),
                workers=variables.parsed("JOB_WORKERS", _workers),
                places=places,
            ),
            landing=Landing(
                queue_url=variables.text("QUEUE_URL"),
                places=places,
                reach=Reach(region=variables.text("AWS_REGION")),
                trigger_s=limits.trigger_s,
            ),
            limits=limits,
        )


def _workers(text: str) -> Workers:
    return _fields(Workers, text)


def _fields(type_: Callable[..., T], text: str) -> T:
    try:
        return type_(**json.loads(text))
    except TypeError as error:  # no object, or not with these fields
        raise ValueError(str(error)) from error
