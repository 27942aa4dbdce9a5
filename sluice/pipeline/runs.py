"""Decides the next step for a job from its runs: start, keep, stop, wait, or nothing. Pure.

Every decision depends only on the current runs, so the next reconciliation corrects a lost start, a run that an
operator cancelled, or two concurrent starts. A run's name contains the job's digest and slot, because EMR Serverless
lists runs with names but without tags.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

import msgspec

from sluice.codec import Format, Struct
from sluice.pipeline.jobs import Job, JobMode
from sluice.times import DAY_MS

SEPARATOR = "/"
# Limit of a client token: https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html
TOKEN_CHARACTERS = 64


class TargetState(StrEnum):
    """A state that an operator can request for the stream."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


class DesiredState(Struct, frozen=True, kw_only=True):
    """The stream's last requested state. `since`, an ISO 8601 time, distinguishes one drain from the next."""

    wanted: TargetState  # naming: a stored field
    since: str


DESIRED_STATE = Format(kind="desired-state", version=1, type=DesiredState)


class RunState(StrEnum):
    """State of a job run: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/job-states.html."""

    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED = frozenset({RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED})
LIVE = tuple(state for state in RunState if state not in ENDED)


class RunName(msgspec.Struct, frozen=True):
    """A run's name: job, digest and slot, as in `land/3f2a…` or `statistics/3f2a…/2026-11-20`."""

    job: str
    digest: str
    slot: str = ""

    @classmethod
    def from_job(cls, job: Job) -> Self:
        """Build the name of a job's run."""
        return cls(job.name, job.digest, job.slot)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a run's name; returns None if Sluice didn't start the run."""
        parts = text.split(SEPARATOR)
        return cls(*parts) if len(parts) in {2, 3} and all(parts) else None

    def __str__(self) -> str:
        return SEPARATOR.join(part for part in (self.job, self.digest, self.slot) if part)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job run. `ended_at_ms` is the time of the run's last update, which for an ended run is its end."""

    run_id: str
    name: RunName
    state: RunState
    created_at_ms: int
    ended_at_ms: int
    detail: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Run | None":
        """Parse a run as EMR Serverless lists it; None if Sluice didn't start the run."""
        name = RunName.parse(fields.get("name") or "")
        if name is None:
            return None
        return cls(
            run_id=fields["id"],
            name=name,
            # An unknown state counts as live, because the run might still write.
            state=RunState(fields["state"]) if fields["state"] in list(RunState) else RunState.RUNNING,
            created_at_ms=int(fields["createdAt"].timestamp() * 1000),
            ended_at_ms=int(fields["updatedAt"].timestamp() * 1000),
            detail=fields.get("stateDetails") or "",
        )

    @property
    def is_live(self) -> bool:
        """Whether the run can still read and write."""
        return self.state not in ENDED


class JobStep(StrEnum):
    """The step to take for a job."""

    START = "start"
    KEEP = "keep"  # The job runs as it should.
    BUSY = "busy"  # The request isn't executed: another batch of the job runs.
    STOP = "stop"  # Wrong runs are cancelled first; the next decision can start a run.
    WAIT = "wait"
    REST = "rest"  # The job should not run, or is done.


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A step and its reason, the runs to cancel, the client token of a start, and whether the last run failed."""

    step: JobStep
    reason: str
    runs_to_cancel: tuple[str, ...] = ()
    token: str = ""
    has_last_run_failed: bool = False


def decide_step(name: str, job: Job | None, runs: Iterable[Run], *, now_ms: int, pause_ms: int) -> Decision:
    """Decide the step for job `name`. `job` is the job's definition; None means that it should not run.

    `runs` has all live runs and the runs that ended in the last days, of all jobs, in any order. A failed stream is
    started again after `pause_ms`. 0 means at once, without comparing clocks.
    """
    job_runs = sorted((run for run in runs if run.name.job == name), key=lambda run: (run.created_at_ms, run.run_id))
    live = [run for run in job_runs if run.is_live]
    # A running batch job continues even if its definition changes. No second run starts before its end.
    kept = job and next(
        (
            run
            for run in live
            if run.state is not RunState.CANCELLING
            and (bool(run.name.slot) if job.slot else run.name == RunName.from_job(job))
        ),
        None,
    )
    cancel = tuple(run.run_id for run in live if run is not kept and run.state is not RunState.CANCELLING)
    if kept:
        # The oldest run continues. If a race has started more runs of the same job, they are cancelled.
        run_state = f"{kept.run_id} is {kept.state.value}"
        if job and kept.name.slot != job.slot and kept.name.digest != job.digest:
            return Decision(step=JobStep.BUSY, reason=f"{run_state}, which is {kept.name}", runs_to_cancel=cancel)
        return Decision(step=JobStep.KEEP, reason=run_state, runs_to_cancel=cancel)
    if cancel:
        return Decision(step=JobStep.STOP, reason=f"{', '.join(cancel)}: not as it should run", runs_to_cancel=cancel)
    if live:
        return Decision(step=JobStep.WAIT, reason=f"{live[0].run_id} is ending")
    if job is None:
        return Decision(step=JobStep.REST, reason="not wanted")
    return _decide_next(job, job_runs, now_ms=now_ms, pause_ms=pause_ms)


def _decide_next(job: Job, job_runs: Sequence[Run], *, now_ms: int, pause_ms: int) -> Decision:
    """Decide the step after the job's last run has ended. A slot runs once, even if the job's definition changes."""
    # Concurrent starts of a job after the same run have the same token, so that EMR Serverless starts only one run.
    # If no earlier run is listed, the token contains the day.
    latest = job_runs[-1].run_id if job_runs else str(now_ms // DAY_MS)
    token = hashlib.sha256(f"{RunName.from_job(job)} after {latest}".encode()).hexdigest()[:TOKEN_CHARACTERS]
    start = Decision(step=JobStep.START, reason="none runs", token=token)
    same = (
        run for run in reversed(job_runs) if run.name.slot == job.slot and (job.slot or run.name.digest == job.digest)
    )
    last = next(same, None)
    if last is None or (last.state is RunState.CANCELLED and not job.slot):
        return start
    failed, was = last.state is RunState.FAILED, f"{last.run_id} was {last.state.value}"
    if job.slot:
        return Decision(step=JobStep.REST, reason=was, has_last_run_failed=failed)
    if pause_ms and now_ms < last.ended_at_ms + pause_ms:
        return Decision(step=JobStep.WAIT, reason=f"{was}: started again later", has_last_run_failed=failed)
    return start


def build_start_request(job: Job, *, application_id: str, role_arn: str, token: str) -> dict[str, object]:
    """Build the arguments of EMR Serverless's StartJobRun for a job."""
    streaming = job.mode is JobMode.STREAMING
    return {
        "applicationId": application_id,
        "clientToken": token,
        "executionRoleArn": role_arn,
        "name": str(RunName.from_job(job)),
        "mode": job.mode.value,
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": job.program.entry_point,
                "entryPointArguments": list(job.arguments),
                "sparkSubmitParameters": job.spark_submit_parameters,
            }
        },
        "retryPolicy": {"maxFailedAttemptsPerHour" if streaming else "maxAttempts": job.attempts},
        "executionTimeoutMinutes": job.timeout_minutes,
        "tags": {"sluice:job": job.name, "sluice:digest": job.digest},
    }
