"""Brings the runs that there are to the jobs that there should be, every minute and whenever somebody asks.

`JobRuns` and `DesiredStates` are the ports.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from sluice.errors import RequestRefused
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.jobs import JOBS, LAND, Job
from sluice.pipeline.operations import (
    DrainQueue,
    JobOutcome,
    JobsOperation,
    PipelineView,
    ReconcileJobs,
    RunView,
    ShowPipeline,
    StartLand,
    StopJob,
)
from sluice.pipeline.runs import JobStep, Run, decide
from sluice.pipeline.states import DesiredState, Wanted
from sluice.times import iso

SHOWN_RUNS = 20
WANTED = {StartLand: Wanted.RUNNING, DrainQueue: Wanted.DRAINED, StopJob: Wanted.STOPPED}  # of the stream
AT_REST = (ReconcileJobs, ShowPipeline, StopJob)


class DesiredStates(Protocol):
    """Keeps what was asked for of the stream."""

    def load(self) -> DesiredState | None:
        """None where nobody has asked for anything."""

    def save(self, state: DesiredState) -> None:
        """Replace it."""


class JobRuns(Protocol):
    """The job runs of an application. Calls raise `CallFailed`."""

    def all(self, *, now_ms: int) -> Sequence[Run]:
        """All live ones, and those of the last days."""

    def start(self, job: Job, *, token: str) -> str:
        """Start a run, once for each token; its id."""

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Asks a run to end, and kills it after the grace period. One that has ended stays so."""


class Reconciler(msgspec.Struct, frozen=True, kw_only=True):
    """Looks after the jobs of one site. Every operation may be repeated."""

    catalogue: Catalogue
    runs: JobRuns
    desired: DesiredStates
    now_ms: Callable[[], int]

    def perform(self, operation: JobsOperation) -> object:
        """Do what is asked; a result of the operation's type. Raises `CallFailed`, and `RequestRefused` at rest."""
        if self.catalogue.settings.limits.resting and not isinstance(operation, AT_REST):
            raise RequestRefused("the pipeline rests, and no job reaches SQS: deploy it with pipeline.resting false")
        match operation:
            case ReconcileJobs():
                return self.reconcile()
            case ShowPipeline():
                return self.show()
            case StartLand() | DrainQueue() | StopJob(job="land"):
                return self._want(WANTED[type(operation)])
            case StopJob(job=name):
                return self._do(name, None, self._runs(), pause_ms=0)
            case _:
                job = self.catalogue.by_hand(operation, slot=f"by-hand-{iso(self.now_ms())}")
                return self._do(job.name, job, self._runs(), pause_ms=0)

    def reconcile(self) -> tuple[JobOutcome, ...]:
        """Do what is to be done about every job by now, the stream first."""
        runs, state = self._runs(), self.state()
        pause_ms = self.catalogue.settings.limits.restart_after_failure_s * 1000
        landed = self._do(LAND, self._stream(state), runs, pause_ms=pause_ms)
        if state.wanted is Wanted.DRAINED and landed.step is JobStep.REST:
            # It is done; else it would be done again when its run is no longer listed.
            self._save(Wanted.STOPPED)
        if self.catalogue.settings.limits.resting:
            return (landed, *(self._do(name, None, runs, pause_ms=pause_ms) for name in JOBS if name != LAND))
        due = self.catalogue.scheduled(self.now_ms())
        return (landed, *(self._do(job.name, job, runs, pause_ms=pause_ms) for job in due))

    def show(self) -> PipelineView:
        """Says what is wanted, and which runs there are."""
        runs = sorted(self._runs(), key=lambda run: run.created_at_ms, reverse=True)
        state = self.state()
        return PipelineView(
            wanted=state.wanted,
            since=state.since,
            digest=self.catalogue.land().digest,
            application=self.catalogue.settings.application_id,
            runs=tuple(
                RunView(
                    run=run.run_id,
                    job=run.name.job,
                    digest=run.name.digest,
                    slot=run.name.slot,
                    state=run.state,
                    detail=run.detail,
                    started_at_ms=run.created_at_ms,
                    ended_at_ms=None if run.live else run.ended_at_ms,
                )
                for run in runs[:SHOWN_RUNS]
            ),
        )

    def state(self) -> DesiredState:
        """Load what is wanted of the stream; at first what the deployment says, and as long as that is rest."""
        if self.catalogue.settings.limits.resting:
            return DesiredState(wanted=Wanted.STOPPED, since="")
        first = Wanted.RUNNING if self.catalogue.settings.limits.streaming else Wanted.STOPPED
        return self.desired.load() or DesiredState(wanted=first, since="")

    def _want(self, wanted: Wanted) -> JobOutcome:
        """Note what is wanted and act on it. A drain under way goes on: it has its slot from when it was asked for."""
        if not (wanted is Wanted.DRAINED and self.state().wanted is Wanted.DRAINED):
            self._save(wanted)
        return self._do(LAND, self._stream(self.state()), self._runs(), pause_ms=0)

    def _stream(self, state: DesiredState) -> Job | None:
        match state.wanted:
            case Wanted.RUNNING:
                return self.catalogue.land()
            case Wanted.DRAINED:
                return self.catalogue.drain(state.since)
            case Wanted.STOPPED:
                return None

    def _do(self, name: str, job: Job | None, runs: Sequence[Run], *, pause_ms: int) -> JobOutcome:
        decision = decide(name, job, runs, now_ms=self.now_ms(), pause_ms=pause_ms)
        for run_id in decision.cancel:
            self.runs.cancel(run_id, grace_s=self.catalogue.settings.limits.shutdown_grace_s)
        starts = job is not None and decision.step is JobStep.START
        return JobOutcome(
            job=name,
            step=decision.step,
            reason=decision.reason,
            run=self.runs.start(job, token=decision.token) if starts and job else "",
            cancelled=decision.cancel,
            failed=decision.failed,
            wanted=job is not None,
        )

    def _runs(self) -> Sequence[Run]:
        return self.runs.all(now_ms=self.now_ms())

    def _save(self, wanted: Wanted) -> None:
        self.desired.save(DesiredState(wanted=wanted, since=iso(self.now_ms())))
