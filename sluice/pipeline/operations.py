"""What the jobs function is asked, and what it says of jobs and their runs. Pure.

The command line is one asker, the schedule's rule the other.
"""

import re
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation
from sluice.pipeline.jobs import LAND
from sluice.pipeline.runs import JobStep, RunState
from sluice.pipeline.states import Wanted

Text = Annotated[str, Meta(min_length=1, max_length=256)]
JobName = Literal["land", "statistics", "compact", "replay"]
YESTERDAY = "yesterday"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")  # of what Python takes for a date the one form


class JobOutcome(Struct, frozen=True, kw_only=True):
    """What was done about a job, and why.

    `run` is the run that was started, or empty; `cancelled` are those that were ended; `failed` is whether the last one
    did, `wanted` whether the job should run.
    """

    job: str
    step: JobStep
    reason: str
    run: str = ""
    cancelled: tuple[str, ...] = ()
    failed: bool = False
    wanted: bool = False

    @property
    def stream_is_down(self) -> bool:
        """Whether this is the stream, should run and doesn't: it failed, or its successor has still to start."""
        return self.job == LAND and self.wanted and self.step in {JobStep.WAIT, JobStep.STOP}


class RunView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run, at the version of its job that `digest` names. One that hasn't ended has no end."""

    run: str
    job: str
    digest: str
    slot: str
    state: RunState
    detail: str
    started_at_ms: int
    ended_at_ms: int | None = None


class PipelineView(Struct, frozen=True, kw_only=True):
    """What is wanted of the stream, since when (nothing where nobody has asked), and the latest runs, newest first.

    `digest` names the land job as it is deployed.
    """

    wanted: Wanted
    since: str
    digest: str
    application: str
    runs: tuple[RunView, ...]


class ReconcileJobs(Operation[tuple[JobOutcome, ...]], frozen=True, kw_only=True, tag="reconcile"):
    """Do what is to be done about every job by now."""


class StartLand(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-land"):
    """Run the stream, as it was deployed, until it is stopped."""


class StartStatistics(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-statistics"):
    """Write the statistics of a day, YYYY-MM-DD or `yesterday`."""

    day: Text = YESTERDAY

    def __post_init__(self) -> None:
        """Raise ValueError for what is no day: Spark would say so minutes later."""
        if self.day != YESTERDAY and not _is_day(self.day):
            raise ValueError(f"day: {self.day!r} is neither YYYY-MM-DD nor {YESTERDAY}")


class StartCompaction(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-compact"):
    """Compact the last closed days, or as many as the deployment says."""

    days: Annotated[int, Meta(ge=1, le=3_650)] | None = None


class StartReplay(Operation[JobOutcome], frozen=True, kw_only=True, tag="start-replay"):
    """Send again to an exchange what was sent between two times, from tables or from segments that are still kept."""

    exchange: Text
    since: Text
    until: Text
    staged: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for what are no times, or not in their order."""
        if _moment("from", self.since) >= _moment("to", self.until):
            raise ValueError(f"to: {self.until!r} is not after {self.since!r}")


class StopJob(Operation[JobOutcome], frozen=True, kw_only=True, tag="stop"):
    """End a job's runs; the stream stays stopped until it is started."""

    job: JobName = "land"


class DrainQueue(Operation[JobOutcome], frozen=True, kw_only=True, tag="drain"):
    """End the stream, land what the queue holds, and stop. A drain under way goes on."""


class ShowPipeline(Operation[PipelineView], frozen=True, kw_only=True, tag="status"):
    """Say what is wanted, and which runs there are."""


StartBatch = StartStatistics | StartCompaction | StartReplay
JobsOperation = (
    ReconcileJobs | StartLand | StartStatistics | StartCompaction | StartReplay | StopJob | DrainQueue | ShowPipeline
)


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return _DAY.fullmatch(text) is not None


def _moment(name: str, text: str) -> datetime:
    """Read a time, UTC's where it doesn't say, as the job does."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a time as 2026-11-21T14:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
