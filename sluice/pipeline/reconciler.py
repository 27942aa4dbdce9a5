"""Reconciles job runs with the jobs that should run, every minute and at each request.

The reconciler's ports are `JobRuns`, `Endpoints` and `DesiredStates`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from sluice.pipeline.catalogue import JobCatalogue
from sluice.pipeline.endpoints import EndpointSettings, VpcEndpoint, plan_endpoints
from sluice.pipeline.jobs import LAND, Job
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
from sluice.pipeline.runs import Decision, DesiredState, JobStep, Run, TargetState, decide_step
from sluice.times import MINUTE_MS, format_time

SHOWN_RUNS = 20
TARGET_STATES = {
    StartLand: TargetState.RUNNING,
    DrainQueue: TargetState.DRAINED,
    StopJob: TargetState.STOPPED,
}  # the stream's requested state, by operation
NEVER_STARTED = DesiredState(wanted=TargetState.STOPPED, since="")


class DesiredStates(Protocol):
    """Stores the stream's requested state."""

    def load(self) -> DesiredState | None:
        """Return the stream's requested state; None if there never was a request."""

    def save(self, state: DesiredState) -> None:
        """Replace the stream's requested state."""


class JobRuns(Protocol):
    """The job runs of an EMR Serverless application. Methods raise `CallFailed`."""

    def list_runs(self, *, now_ms: int) -> Sequence[Run]:
        """Return all live runs, and the runs that ended in the last days."""

    def start(self, job: Job, *, token: str) -> str:
        """Start a run, once for each token. Returns the run's id."""

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Cancel a run, which is killed after the grace period. Does nothing if the run has ended."""


class Endpoints(Protocol):
    """The VPC endpoints of an EMR Serverless application. Methods raise `CallFailed`."""

    def list_all(self) -> Sequence[VpcEndpoint]:
        """Return all endpoints, even endpoints that are being deleted."""

    def create(self, service: str, settings: EndpointSettings, *, token: str) -> None:
        """Create a service's endpoint, once for each token. The endpoint is available minutes later."""

    def delete(self, endpoint_ids: Sequence[str]) -> None:
        """Delete endpoints, which takes minutes. An endpoint that is already gone is no error."""


class Reconciler(msgspec.Struct, frozen=True, kw_only=True):
    """Applies operations on a site's jobs. Every operation can be repeated safely."""

    catalogue: JobCatalogue
    runs: JobRuns
    desired: DesiredStates
    now_ms: Callable[[], int]
    endpoints: Endpoints | None = None

    def apply(self, operation: JobsOperation) -> object:
        """Apply an operation, and return the operation's result. Raises `CallFailed`."""
        job: Job | None
        match operation:
            case ReconcileJobs():
                return self.reconcile()
            case ShowPipeline():
                return self.show()
            case StartLand() | DrainQueue() | StopJob(job="land"):
                target = TARGET_STATES[type(operation)]
                # Neither a second drain request, nor a stop before the first start, changes the state.
                if target is TargetState.RUNNING or target is not self.state().wanted:
                    self.desired.save(DesiredState(wanted=target, since=format_time(self.now_ms())))
                name, job = LAND, self._stream_job(self.state())
            case StopJob(job=name):
                job = None
            case _:
                job = self.catalogue.build_manual_job(operation, slot=f"by-hand-{format_time(self.now_ms())}")
                name = job.name
        [outcome] = self._apply_decisions({name: job}, pause_ms=0)
        return outcome

    def reconcile(self) -> tuple[JobOutcome, ...]:
        """Reconcile the runs of every job, the stream first. Daily jobs don't run before the pipeline's first start."""
        state = self.state()
        due = () if state == NEVER_STARTED else self.catalogue.build_due_jobs(self.now_ms())
        jobs = {LAND: self._stream_job(state), **{job.name: job for job in due}}
        pause_ms = self.catalogue.settings.limits.restart_after_failure_s * 1000
        outcomes = self._apply_decisions(jobs, pause_ms=pause_ms)
        if state.wanted is TargetState.DRAINED and outcomes[0].step is JobStep.REST:
            # A finished drain counts as a stop. Otherwise the drain would run again when its run is no longer listed.
            self.desired.save(DesiredState(wanted=TargetState.STOPPED, since=format_time(self.now_ms())))
        return outcomes

    def show(self) -> PipelineView:
        """Return the stream's requested state, and the latest job runs."""
        runs = sorted(self._list_runs(), key=lambda run: run.created_at_ms, reverse=True)
        state = self.state()
        return PipelineView(
            wanted=state.wanted,
            since=state.since,
            digest=self.catalogue.build_land_job().digest,
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
        """Return the stream's requested state. Before a request, the deployment's parameter decides."""
        first = DesiredState(wanted=TargetState.RUNNING, since="")
        return self.desired.load() or (first if self.catalogue.settings.limits.streaming else NEVER_STARTED)

    def _stream_job(self, state: DesiredState) -> Job | None:
        match state.wanted:
            case TargetState.RUNNING:
                return self.catalogue.build_land_job()
            case TargetState.DRAINED:
                return self.catalogue.build_drain_job(state.since)
            case TargetState.STOPPED:
                return None

    def _apply_decisions(self, jobs: Mapping[str, Job | None], *, pause_ms: int) -> tuple[JobOutcome, ...]:
        runs, now_ms, outcomes = self._list_runs(), self.now_ms(), []
        decisions = {name: decide_step(name, job, runs, now_ms=now_ms, pause_ms=pause_ms) for name, job in jobs.items()}
        for decision in decisions.values():
            for run_id in decision.runs_to_cancel:
                self.runs.cancel(run_id, grace_s=self.catalogue.settings.limits.shutdown_grace_s)
        unreachable = self._reconcile_endpoints(runs, decisions.values())
        for name, job in jobs.items():
            decision, run_id = decisions[name], ""
            if job is not None and decision.step is JobStep.START:
                if unreachable:
                    reason = f"VPC endpoints are not available yet: {', '.join(unreachable)}"
                    decision = replace(decision, step=JobStep.WAIT, reason=reason)
                else:
                    run_id = self.runs.start(job, token=decision.token)
            outcomes.append(
                JobOutcome(
                    job=name,
                    step=decision.step,
                    reason=decision.reason,
                    run=run_id,
                    cancelled=decision.runs_to_cancel,
                    failed=decision.has_last_run_failed,
                    wanted=job is not None,
                )
            )
        return tuple(outcomes)

    def _reconcile_endpoints(self, runs: Sequence[Run], decisions: Iterable[Decision]) -> Sequence[str]:
        """Create endpoints that jobs need, and delete idle ones. Returns the services that jobs can't reach yet."""
        settings = self.catalogue.settings.endpoints
        if self.endpoints is None or settings is None:
            return ()
        now_ms, actual = self.now_ms(), self.endpoints.list_all()
        is_needed = any(run.is_live for run in runs) or any(decision.step is JobStep.START for decision in decisions)
        last_ms = max((*(run.ended_at_ms for run in runs), *(endpoint.created_at_ms for endpoint in actual)), default=0)
        idle_ms = self.catalogue.settings.limits.idle_timeout_minutes * MINUTE_MS
        plan = plan_endpoints(
            settings, actual, is_needed=is_needed, is_idle=not is_needed and now_ms >= last_ms + idle_ms
        )
        if plan.ids_to_delete:
            self.endpoints.delete(plan.ids_to_delete)
        for service in plan.services_to_create:
            # Concurrent requests have the same token. A later request, after an endpoint is gone, has another token.
            self.endpoints.create(service, settings, token=f"{service}-{settings.digest}-{now_ms // MINUTE_MS}")
        return plan.unreachable_services

    def _list_runs(self) -> Sequence[Run]:
        return self.runs.list_runs(now_ms=self.now_ms())
