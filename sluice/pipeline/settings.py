"""What the jobs function is told by its environment variables: everything that makes a job what it is."""

import msgspec

from sluice.pipeline.jobs import Landing, Program
from sluice.pipeline.schedule import Daily
from sluice.settings import Settings


class JobLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs run. `streaming` is whether the land job runs where nobody has said otherwise.

    `resting` is whether none can run, whatever was said: nothing leads them to SQS.
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
        """When the statistics of the day before are due."""
        return Daily.parse(self.statistics_at) if self.statistics_at else None

    @property
    def compaction(self) -> Daily | None:
        """When compaction is due."""
        return Daily.parse(self.compaction_at) if self.compaction_at else None


class JobsSettings(Settings, frozen=True, kw_only=True):
    """Settings of the jobs function. `ingress_url` is where replayed messages go."""

    application_id: str
    role_arn: str
    table: str
    ingress_url: str
    program: Program
    landing: Landing
    limits: JobLimits
