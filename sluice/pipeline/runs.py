"""What is to be done about a job, given its runs: start, keep, stop, wait, or nothing. Pure.

It is asked again and again, and every answer follows from what is there alone: so a start that was lost, a run that
was cancelled by hand or two that were started at once are mended the next time. A run's name says what it is of,
because a list of runs shows their names and not their tags.
"""

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Self

import msgspec

from sluice.pipeline.jobs import Job, Mode
from sluice.times import DAY_MS

SEPARATOR = "/"
TOKEN_CHARACTERS = (
    64  # of a client token: https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_StartJobRun.html
)


class RunState(StrEnum):
    """Of a job run: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/job-states.html."""

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
    """`land/3f2a…` or `statistics/3f2a…/2026-11-20`."""

    job: str
    digest: str
    slot: str = ""

    @classmethod
    def of(cls, job: Job) -> Self:
        """Names a job's run."""
        return cls(job.name, job.digest, job.slot)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a name; None for a run that is somebody else's."""
        parts = text.split(SEPARATOR)
        return cls(*parts) if len(parts) in {2, 3} and all(parts) else None

    def __str__(self) -> str:
        return SEPARATOR.join(part for part in (self.job, self.digest, self.slot) if part)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `ended_at_ms` is when it was last heard of, which for one that has ended is when it did."""

    run_id: str
    name: RunName
    state: RunState
    created_at_ms: int
    ended_at_ms: int
    detail: str = ""

    @property
    def live(self) -> bool:
        """Whether it may still read and write."""
        return self.state not in ENDED


class JobStep(StrEnum):
    """What to do."""

    START = "start"
    KEEP = "keep"  # it runs
    BUSY = "busy"  # another batch of the job runs: what was asked for isn't done
    STOP = "stop"  # then look again: nothing is started beside a run that still writes
    WAIT = "wait"
    REST = "rest"  # nothing is wanted, or it is done


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A step, the runs to cancel, the client token of a start, and why, in words; whether the last run failed."""

    step: JobStep
    reason: str
    cancel: tuple[str, ...] = ()
    token: str = ""
    failed: bool = False


def decide(name: str, job: Job | None, runs: Iterable[Run], *, now_ms: int, pause_ms: int) -> Decision:
    """Says what to do about the job `name`, which should run as `job`, or not at all.

    `runs` are all live ones and those that ended in the last days, of any job, in any order. A stream that failed is
    started again `pause_ms` after; 0 is at once, whatever the clocks say.
    """
    ours = sorted((run for run in runs if run.name.job == name), key=lambda run: (run.created_at_ms, run.run_id))
    live = [run for run in ours if run.live]
    # A batch that has begun goes on as it was, and no other begins beside it.
    kept = job and next(
        (
            run
            for run in live
            if run.state is not RunState.CANCELLING
            and (bool(run.name.slot) if job.slot else run.name == RunName.of(job))
        ),
        None,
    )
    cancel = tuple(run.run_id for run in live if run is not kept and run.state is not RunState.CANCELLING)
    if kept:
        # The oldest goes on; others of the same job, which a race has started, are ended.
        said = f"{kept.run_id} is {kept.state.value}"
        if job and kept.name.slot != job.slot and kept.name.digest != job.digest:
            return Decision(step=JobStep.BUSY, reason=f"{said}, which is {kept.name}", cancel=cancel)
        return Decision(step=JobStep.KEEP, reason=said, cancel=cancel)
    if cancel:
        return Decision(step=JobStep.STOP, reason=f"{', '.join(cancel)}: not as it should run", cancel=cancel)
    if live:
        return Decision(step=JobStep.WAIT, reason=f"{live[0].run_id} is ending")
    if job is None:
        return Decision(step=JobStep.REST, reason="not wanted")
    return _next(job, ours, now_ms=now_ms, pause_ms=pause_ms)


def _next(job: Job, ours: Sequence[Run], *, now_ms: int, pause_ms: int) -> Decision:
    """Decide what comes after the job's last run. A slot is done once, by whichever version of the job."""
    start = Decision(step=JobStep.START, reason="none runs", token=_token(job, ours, now_ms=now_ms))
    same = (run for run in reversed(ours) if run.name.slot == job.slot and (job.slot or run.name.digest == job.digest))
    last = next(same, None)
    if last is None or (last.state is RunState.CANCELLED and not job.slot):
        return start
    failed, was = last.state is RunState.FAILED, f"{last.run_id} was {last.state.value}"
    if job.slot:
        return Decision(step=JobStep.REST, reason=was, failed=failed)
    if pause_ms and now_ms < last.ended_at_ms + pause_ms:
        return Decision(step=JobStep.WAIT, reason=f"{was}: started again later", failed=failed)
    return start


def _token(job: Job, ours: Sequence[Run], *, now_ms: int) -> str:
    """Make the same for all who start the same job after the same run, so that EMR Serverless starts it once.

    The day is in it for a job whose earlier runs are no longer listed.
    """
    latest = ours[-1].run_id if ours else str(now_ms // DAY_MS)
    return hashlib.sha256(f"{RunName.of(job)} after {latest}".encode()).hexdigest()[:TOKEN_CHARACTERS]


def request(job: Job, *, application_id: str, role_arn: str, token: str) -> dict[str, object]:
    """Make the arguments of StartJobRun."""
    streaming = job.mode is Mode.STREAMING
    return {
        "applicationId": application_id,
        "clientToken": token,
        "executionRoleArn": role_arn,
        "name": str(RunName.of(job)),
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
