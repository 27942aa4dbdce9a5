"""Requests to the jobs function, and their results. Pure.

The command line and a scheduled rule send these requests.
"""

import re
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation
from sluice.pipeline.jobs import LAND
from sluice.pipeline.runs import JobStep, RunState, TargetState

Text = Annotated[str, Meta(min_length=1, max_length=256)]
JobName = Literal["land", "statistics", "compact", "replay"]
YESTERDAY = "yesterday"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")  # Python would accept more forms of dates.


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The step taken for a job, and the reason.

    `run` is the started run's id, or "". `cancelled` has the ids of cancelled runs. `failed`: the last run has failed.
    `wanted`: the job should run.
    """

    job: str
    step: JobStep
    reason: str
    run: str = ""
    cancelled: tuple[str, ...] = ()
    failed: bool = False
    wanted: bool = False  # naming: the reply has a field of this name

    @property
    def stream_is_down(self) -> bool:
        """Whether the stream should run but doesn't: it failed, or its new version hasn't started yet."""
        return self.job == LAND and self.wanted and self.step in {JobStep.WAIT, JobStep.STOP}


class RunView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job run for display. `digest` is the digest of the job as started. `ended_at_ms` is None for a live run."""

    run: str
    job: str
    digest: str
    slot: str
    state: RunState
    detail: str
    started_at_ms: int
    ended_at_ms: int | None = None


class PipelineView(Struct, frozen=True, kw_only=True):
    """The stream's requested state, the time of the request ("" if there was none), and the latest runs, newest first.

    `digest` is the deployed land job's digest.
    """

    wanted: TargetState  # naming: the reply has a field of this name
    since: str
    digest: str
    application: str
    runs: tuple[RunView, ...]


class ReconcileJobs(Operation[tuple[JobOutcome, ...]], frozen=True, kw_only=True, tag="reconcile"):
    """Reconcile the runs of every job with the jobs that should run."""


class StartLand(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-land"):
    """Run the deployed streaming land job until it is stopped."""


class StartStatistics(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-statistics"):
    """Run the job that writes the statistics of a day, YYYY-MM-DD or `yesterday`."""

    day: Text = YESTERDAY

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid day, because Spark would fail only minutes later."""
        if self.day == YESTERDAY:
            return
        with suppress(ValueError):
            if _DAY.fullmatch(self.day) and date.fromisoformat(self.day):
                return
        raise ValueError(f"day: {self.day!r} is neither YYYY-MM-DD nor {YESTERDAY}")


class StartCompaction(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-compact"):
    """Run the job that compacts the last `days` closed days. The default is the deployment's parameter."""

    days: Annotated[int, Meta(ge=1, le=3_650)] | None = None


class StartReplay(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-replay"):
    """Run the job that sends a period's messages to an exchange again, from tables or from retained segments."""

    exchange: Text
    since: Text
    until: Text
    staged: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for invalid times, and if `until` is not after `since`."""
        if _parse_time("from", self.since) >= _parse_time("to", self.until):
            raise ValueError(f"to: {self.until!r} is not after {self.since!r}")


class StopJob(Operation[JobOutcome], frozen=True, kw_only=True, tag="stop"):
    """Cancel a job's runs. The stream stays stopped until an operator starts it."""

    job: JobName = "land"


class DrainQueue(Operation[JobOutcome], frozen=True, kw_only=True, tag="drain"):
    """Stop the stream, land the messages that are in the queue, then stop. A running drain continues."""


class ShowPipeline(Operation[PipelineView], frozen=True, kw_only=True, tag="status"):
    """Return the stream's requested state, and the latest job runs."""

    only_reads = True


StartBatch = StartStatistics | StartCompaction | StartReplay
JobsOperation = (
    ReconcileJobs | StartLand | StartStatistics | StartCompaction | StartReplay | StopJob | DrainQueue | ShowPipeline
)


def _parse_time(name: str, text: str) -> datetime:
    """Parse an ISO 8601 time as the replay job does. A time without an offset is UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: {text!r} is not a time as 2026-11-21T14:00:00Z") from None
