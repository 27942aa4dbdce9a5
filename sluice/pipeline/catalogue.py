"""The jobs of one site, built from its settings. Pure."""

from collections.abc import Sequence

import msgspec

from sluice.pipeline.jobs import (
    COMPACT,
    LAND,
    REPLAY,
    STATISTICS,
    Job,
    JobMode,
    Replay,
    StorageLocations,
    compact_arguments,
    statistics_arguments,
)
from sluice.pipeline.operations import StartBatch, StartCompaction, StartStatistics
from sluice.pipeline.schedule import ONE_DAY
from sluice.pipeline.settings import JobsSettings


class JobCatalogue(msgspec.Struct, frozen=True):
    """Builds the jobs of a site."""

    settings: JobsSettings

    def build_land_job(self) -> Job:
        """Build the streaming land job."""
        limits = self.settings.limits
        return Job(
            name=LAND,
            mode=JobMode.STREAMING,
            program=self.settings.program,
            arguments=self.settings.landing.arguments(),
            attempts=limits.failed_attempts_per_hour,
            timeout_minutes=0,
        )

    def build_drain_job(self, slot: str) -> Job:
        """Build the land job that drains the queue. It replaces the streaming job, and uses the same checkpoint."""
        return self._build_batch_job(LAND, self.settings.landing.arguments(drain=True), slot)

    def build_due_jobs(self, now_ms: int) -> Sequence[Job]:
        """Build the scheduled jobs, each for the latest time at which it was due."""
        limits, jobs = self.settings.limits, []
        if limits.statistics:
            day = (limits.statistics.find_last_due_day(now_ms) - ONE_DAY).isoformat()
            jobs.append(self._build_batch_job(STATISTICS, statistics_arguments(self._places, day=day), day))
        if limits.compaction:
            slot = limits.compaction.find_last_due_day(now_ms).isoformat()
            jobs.append(
                self._build_batch_job(COMPACT, compact_arguments(self._places, days=limits.compaction_days), slot)
            )
        return jobs

    def build_manual_job(self, request: StartBatch, slot: str) -> Job:
        """Build the batch job that an operator has requested."""
        match request:
            case StartStatistics(day=day):
                return self._build_batch_job(STATISTICS, statistics_arguments(self._places, day=day), f"{day}-{slot}")
            case StartCompaction(days=days):
                days = self.settings.limits.compaction_days if days is None else days
                return self._build_batch_job(COMPACT, compact_arguments(self._places, days=days), slot)
        replay = Replay(
            queue_url=self.settings.ingress_url,
            exchange=request.exchange,
            since=request.since,
            until=request.until,
            staged=request.staged,
        )
        return self._build_batch_job(REPLAY, replay.arguments(self._places, self.settings.landing.sqs_endpoint), slot)

    @property
    def _places(self) -> StorageLocations:
        return self.settings.landing.places

    def _build_batch_job(self, name: str, arguments: Sequence[str], slot: str) -> Job:
        limits = self.settings.limits
        return Job(
            name=name,
            mode=JobMode.BATCH,
            program=self.settings.program,
            arguments=arguments,
            attempts=limits.batch_attempts,
            timeout_minutes=limits.batch_timeout_minutes,
            slot=slot,
        )
