"""The jobs of one site, as its settings make them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.errors import BadConfiguration
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
from sluice.pipeline.schedule import ONE_DAY
from sluice.pipeline.settings import JobsSettings

FIELDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {  # those it needs, those it knows beside
    STATISTICS: (frozenset(), frozenset({"day"})),
    COMPACT: (frozenset(), frozenset({"days"})),
    REPLAY: (frozenset({"exchange", "since", "until"}), frozenset({"staged"})),
}
YESTERDAY = "yesterday"


class BadJob(BadConfiguration):
    """A job that isn't there, or can't be run with what it is given. The text says why."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Makes jobs."""

    settings: JobsSettings

    def land(self) -> Job:
        """The stream."""
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
        """The land job until the queue is empty; it stands in for the stream, on whose checkpoint it goes on."""
        return self._batch(LAND, self.settings.landing.arguments(drain=True), slot)

    def scheduled(self, now_ms: int) -> Sequence[Job]:
        """The last ones that are due by now."""
        limits, jobs = self.settings.limits, []
        if limits.statistics:
            day = (limits.statistics.last_due(now_ms) - ONE_DAY).isoformat()
            jobs.append(self._batch(STATISTICS, statistics_arguments(self._places, day=day), day))
        if limits.compaction:
            slot = limits.compaction.last_due(now_ms).isoformat()
            jobs.append(self._batch(COMPACT, self._compaction({}), slot))
        return jobs

    def by_hand(self, name: str, fields: Mapping[str, Any], slot: str) -> Job:
        """A batch job with the fields of `FIELDS`. Raises `BadJob`."""
        if name not in FIELDS:
            raise BadJob(f"no such batch job: {name}; there are {', '.join(FIELDS)}")
        needed, beside = FIELDS[name]
        for field in sorted(needed - fields.keys()):
            raise BadJob(f"{name} needs {field}")
        for field in sorted(fields.keys() - needed - beside):
            raise BadJob(f"{name} knows no {field}")
        arguments = {STATISTICS: self._statistics, COMPACT: self._compaction, REPLAY: self._replay}[name](fields)
        return self._batch(name, arguments, slot)

    def _statistics(self, fields: Mapping[str, Any]) -> Sequence[str]:
        return statistics_arguments(self._places, day=str(fields.get("day", YESTERDAY)))

    def _compaction(self, fields: Mapping[str, Any]) -> Sequence[str]:
        return compact_arguments(self._places, days=int(fields.get("days", self.settings.limits.compaction_days)))

    def _replay(self, fields: Mapping[str, Any]) -> Sequence[str]:
        replay = Replay(
            queue_url=self.settings.ingress_url,
            exchange=str(fields["exchange"]),
            since=str(fields["since"]),
            until=str(fields["until"]),
            staged=bool(fields.get("staged", False)),
        )
        return replay.arguments(self._places, self.settings.landing.reach)

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
