"""Reconciles job runs with the jobs that should run, every minute and at each request.

Its ports are `JobRuns` and `DesiredStates`.
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
from sluice.pipeline.states import DesiredState, TargetState
from sluice.times import iso

SHOWN_RUNS = 20
TARGET_STATES = {
    StartLand: TargetState.RUNNING,
    DrainQueue: TargetState.DRAINED,
    StopJob: TargetState.STOPPED,
}  # the stream's requested state, by operation
ALLOWED_WHILE_RESTING = (ReconcileJobs, ShowPipeline, StopJob)


class DesiredStates(Protocol):
    """Stores the stream's requested state."""

    def load(self) -> DesiredState | None:
        """Return the requested state; None if there never was a request."""

    def save(self, state: DesiredState) -> None:
        """Replace the requested state."""


class JobRuns(Protocol):
    """The job runs of an application. Calls raise `CallFailed`."""

    def all(self, *, now_ms: int) -> Sequence[Run]:
        """Return all live runs, and those of the last days."""

    def start(self, job: Job, *, token: str) -> str:
        """Start a run, once for each token. Returns its id."""

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Request a run to end, and kill it after the grace period. Does nothing if it has ended."""


class Reconciler(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the operations on a site's jobs. Every operation may be repeated."""

    catalogue: Catalogue
    runs: JobRuns
    desired: DesiredStates
    now_ms: Callable[[], int]

    def perform(self, operation: JobsOperation) -> object:
        """Apply the operation; return its result. Raises `CallFailed`, and `RequestRefused` if the pipeline rests."""
        if self.catalogue.settings.limits.resting and not isinstance(operation, ALLOWED_WHILE_RESTING):
            raise RequestRefused("the pipeline rests, and no job reaches SQS: deploy it with pipeline.resting false")
        match operation:
            case ReconcileJobs():
                return self.reconcile()
            case ShowPipeline():
                return self.show()
            case StartLand() | DrainQueue() | StopJob(job="land"):
                target = TARGET_STATES[type(operation)]
                # A running drain continues: it keeps the slot of its first request.
                if not (target is TargetState.DRAINED and self.state().wanted is TargetState.DRAINED):
                    self.desired.save(DesiredState(wanted=target, since=iso(self.now_ms())))
                return self._apply_decision(LAND, self._stream_job(self.state()), self._runs(), pause_ms=0)
            case StopJob(job=name):
                return self._apply_decision(name, None, self._runs(), pause_ms=0)
            case _:
                job = self.catalogue.build_manual_job(operation, slot=f"by-hand-{iso(self.now_ms())}")
                return self._apply_decision(job.name, job, self._runs(), pause_ms=0)

    def reconcile(self) -> tuple[JobOutcome, ...]:
        """Reconcile the runs of every job, the stream first."""
        runs, state = self._runs(), self.state()
        pause_ms = self.catalogue.settings.limits.restart_after_failure_s * 1000
        landed = self._apply_decision(LAND, self._stream_job(state), runs, pause_ms=pause_ms)
        if state.wanted is TargetState.DRAINED and landed.step is JobStep.REST:
            # Once the finished drain's run is no longer listed, the drain would otherwise run again.
            self.desired.save(DesiredState(wanted=TargetState.STOPPED, since=iso(self.now_ms())))
        if self.catalogue.settings.limits.resting:
            return (
                landed,
                *(self._apply_decision(name, None, runs, pause_ms=pause_ms) for name in JOBS if name != LAND),
            )
        due = self.catalogue.build_due_jobs(self.now_ms())
        return (landed, *(self._apply_decision(job.name, job, runs, pause_ms=pause_ms) for job in due))

    def show(self) -> PipelineView:
        """Return the requested state and the latest runs."""
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
                    ended_at_ms=None if run.is_live else run.ended_at_ms,
                )
                for run in runs[:SHOWN_RUNS]
            ),
        )

    def state(self) -> DesiredState:
        """Return the requested state; by default the deployment's, and stopped while the pipeline is resting."""
        if self.catalogue.settings.limits.resting:
            return DesiredState(wanted=TargetState.STOPPED, since="")
        first = TargetState.RUNNING if self.catalogue.settings.limits.streaming else TargetState.STOPPED
        return self.desired.load() or DesiredState(wanted=first, since="")

    def _stream_job(self, state: DesiredState) -> Job | None:
        match state.wanted:
            case TargetState.RUNNING:
                return self.catalogue.land()
            case TargetState.DRAINED:
                return self.catalogue.drain(state.since)
            case TargetState.STOPPED:
                return None

    def _apply_decision(self, name: str, job: Job | None, runs: Sequence[Run], *, pause_ms: int) -> JobOutcome:
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
