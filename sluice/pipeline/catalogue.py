"""The jobs of one site, as its settings make them. Pure."""

from collections.abc import Sequence

import msgspec

from sluice.pipeline.jobs import (
    COMPACT,
    LAND,
    REPLAY,
    STATISTICS,
    Job,
    Mode,
    Places,
    Replay,
    compact_arguments,
    statistics_arguments,
)
from sluice.pipeline.operations import StartBatch, StartCompaction, StartStatistics
from sluice.pipeline.schedule import ONE_DAY
from sluice.pipeline.settings import JobsSettings


class Catalogue(msgspec.Struct, frozen=True):
    """Makes the jobs of a site."""

    settings: JobsSettings

    def land(self) -> Job:
        """Make the stream."""
        limits = self.settings.limits
        return Job(
            name=LAND,
            mode=Mode.STREAMING,
            program=self.settings.program,
            arguments=self.settings.landing.arguments(),
            attempts=limits.failed_attempts_per_hour,
            timeout_minutes=0,
        )

    def drain(self, slot: str) -> Job:
        """Make the land job that ends when the queue is empty; in place of the stream, on its checkpoint."""
        return self._batch(LAND, self.settings.landing.arguments(drain=True), slot)

    def scheduled(self, now_ms: int) -> Sequence[Job]:
        """Make the last ones that are due by now."""
        limits, jobs = self.settings.limits, []
        if limits.statistics:
            day = (limits.statistics.last_due(now_ms) - ONE_DAY).isoformat()
            jobs.append(self._batch(STATISTICS, statistics_arguments(self._places, day=day), day))
        if limits.compaction:
            jobs.append(self._compaction(limits.compaction.last_due(now_ms).isoformat()))
        return jobs

    def by_hand(self, asked: StartBatch, slot: str) -> Job:
        """Make the batch job that is asked for."""
        match asked:
            case StartStatistics(day=day):
                return self._batch(STATISTICS, statistics_arguments(self._places, day=day), f"{day}-{slot}")
            case StartCompaction(days=days):
                return self._compaction(slot, days)
        replay = Replay(
            queue_url=self.settings.ingress_url,
            exchange=asked.exchange,
            since=asked.since,
            until=asked.until,
            staged=asked.staged,
        )
        return self._batch(REPLAY, replay.arguments(self._places, self.settings.landing.reach), slot)

    def _compaction(self, slot: str, days: int | None = None) -> Job:
        days = self.settings.limits.compaction_days if days is None else days
        return self._batch(COMPACT, compact_arguments(self._places, days=days), slot)

    @property
    def _places(self) -> Places:
        return self.settings.landing.places

    def _batch(self, name: str, arguments: Sequence[str], slot: str) -> Job:
        limits = self.settings.limits
        return Job(
            name=name,
            mode=Mode.BATCH,
            program=self.settings.program,
            arguments=arguments,
            attempts=limits.batch_attempts,
            timeout_minutes=limits.batch_timeout_minutes,
            slot=slot,
        )
