"""Settings of the jobs function: everything that defines the jobs."""

from typing import ClassVar

import msgspec

from sluice.pipeline.endpoints import EndpointSettings
from sluice.pipeline.jobs import Landing, Program
from sluice.pipeline.schedule import Daily
from sluice.settings import Settings


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and schedules of jobs. `streaming` is whether the land job runs without an operator's request.

    VPC endpoints are deleted `idle_timeout_minutes` after the last run.
    """

    streaming: bool
    failed_attempts_per_hour: int
    restart_after_failure_s: int
    shutdown_grace_s: int
    batch_attempts: int
    batch_timeout_minutes: int
    statistics_at: str | None
    compaction_at: str | None
    compaction_days: int
    idle_timeout_minutes: int

    @property
    def statistics(self) -> Daily | None:
        """The schedule of the statistics job; None for no schedule."""
        return Daily.parse(self.statistics_at) if self.statistics_at else None

    @property
    def compaction(self) -> Daily | None:
        """The schedule of the compaction job; None for no schedule."""
        return Daily.parse(self.compaction_at) if self.compaction_at else None


class JobsSettings(Settings, frozen=True, kw_only=True):
    """Settings of the jobs function. `ingress_url` is the queue that replays send to.

    Without `endpoints`, the function creates no VPC endpoints.
    """

    STORED_FIELDS: ClassVar[frozenset[str]] = frozenset({"endpoints"})  # Role ARNs can exceed Lambda's environment.

    application_id: str
    role_arn: str
    table: str
    ingress_url: str
    program: Program
    landing: Landing
    limits: JobLimits
    endpoints: EndpointSettings | None = None
