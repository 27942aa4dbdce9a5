"""Settings of the jobs function: everything that defines the jobs."""

import msgspec

from sluice.pipeline.jobs import Landing, Program
from sluice.pipeline.schedule import Daily
from sluice.settings import Settings


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and schedules of jobs. `streaming` is whether the land job runs until an operator requests otherwise.

    If `resting`, no job can run, because the deployment has no network path to SQS.
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
    resting: bool = False

    @property
    def statistics(self) -> Daily | None:
        """The schedule of the previous day's statistics."""
        return Daily.parse(self.statistics_at) if self.statistics_at else None

    @property
    def compaction(self) -> Daily | None:
        """The schedule of compaction."""
        return Daily.parse(self.compaction_at) if self.compaction_at else None


class JobsSettings(Settings, frozen=True, kw_only=True):
    """Settings of the jobs function. `ingress_url` is the queue that replays send to."""

    application_id: str
    role_arn: str
    table: str
    ingress_url: str
    program: Program
    landing: Landing
    limits: JobLimits
