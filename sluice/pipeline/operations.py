"""What may be asked about the pipeline's jobs, and what is done every minute: `Runs` and `Wishes` are the ports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from sluice.pipeline.catalogue import BadJob, Catalogue
from sluice.pipeline.jobs import JOBS, LAND, Job
from sluice.pipeline.runs import Decision, Run, Step, decide
from sluice.pipeline.schedule import moment

SHOWN_RUNS = 20


class Wanted(StrEnum):
    """What an operator wants of the stream."""

    RUNNING = "running"
    STOPPED = "stopped"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for last. `since` tells one drain from the next."""

    wanted: Wanted
    since: str


class Wishes(Protocol):
    """Keeps what was asked for."""

    def load(self) -> Wish | None:
        """None where nobody has asked for anything."""

    def save(self, wish: Wish) -> None:
        """Replaces it."""


class Runs(Protocol):
    """The job runs of an application. Calls raise `CallFailed`."""

    def all(self, *, now_ms: int) -> Sequence[Run]:
        """All live ones, and those of the last days."""

    def start(self, job: Job, *, token: str) -> str:
        """Starts a run, once for each token; its id."""

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Asks a run to end, and kills it after the grace period. One that has ended stays so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was done about a job. `run_id` is that of a run that was started; `wanted` whether it should run."""

    job: str
    decision: Decision
    wanted: bool
    run_id: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """For the one who asked."""
        return {"job": self.job, "step": self.decision.step.value, "reason": self.decision.reason, "run": self.run_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The jobs of one site. Every operation may be repeated."""

    catalogue: Catalogue
    runs: Runs
    wishes: Wishes
    now_ms: Callable[[], int]

    def look(self) -> Sequence[Outcome]:
        """Does what is to be done about every job by now."""
        now_ms = self.now_ms()
        runs, wish = self.runs.all(now_ms=now_ms), self.wish()
        landed = self._do(LAND, self._stream(wish), runs, pause_ms=self._pause_ms)
        if wish.wanted is Wanted.DRAINED and landed.decision.step is Step.REST:
            self._wish(Wanted.STOPPED)  # it is done; else it would be done again when its run is no longer listed
        return [
            landed,
            *(self._do(job.name, job, runs, pause_ms=self._pause_ms) for job in self.catalogue.scheduled(now_ms)),
        ]

    def start(self, name: str, fields: Mapping[str, Any]) -> Outcome:
        """The stream, from now on; or one run of a batch job. Raises `BadJob`."""
        if name != LAND:
            job = self.catalogue.by_hand(name, fields, slot=f"by-hand-{self._moment()}")
            return self._do(name, job, self.runs.all(now_ms=self.now_ms()), pause_ms=0)
        if fields:
            raise BadJob(f"{LAND} takes no {', '.join(sorted(fields))}: it is as it was deployed")
        return self._now(Wanted.RUNNING)

    def stop(self, name: str) -> Outcome:
        """Ends the job's runs; the stream stays stopped until it is started. Raises `BadJob`."""
        if name not in JOBS:
            raise BadJob(f"no such job: {name}; there are {', '.join(JOBS)}")
        if name == LAND:
            return self._now(Wanted.STOPPED)
        return self._do(name, None, self.runs.all(now_ms=self.now_ms()), pause_ms=0)

    def drain(self) -> Outcome:
        """Ends the stream, then lands what the queue holds, and stops. A drain under way goes on."""
        if self.wish().wanted is not Wanted.DRAINED:
            self._wish(Wanted.DRAINED)
        return self._look_at_stream()

    def status(self) -> dict[str, Any]:
        """What is wanted, and the runs, the newest first."""
        runs = sorted(self.runs.all(now_ms=self.now_ms()), key=lambda run: run.created_at_ms, reverse=True)
        wish = self.wish()
        return {
            "wanted": wish.wanted.value,
            "since": wish.since,
            "digest": self.catalogue.land().digest,
            "application": self.catalogue.settings.application_id,
            "runs": [_shown(run) for run in runs[:SHOWN_RUNS]],
        }

    def wish(self) -> Wish:
        """What is wanted of the stream; at first what the deployment says."""
        first = Wanted.RUNNING if self.catalogue.settings.limits.streaming else Wanted.STOPPED
        return self.wishes.load() or Wish(wanted=first, since="")

    def _now(self, wanted: Wanted) -> Outcome:
        self._wish(wanted)
        return self._look_at_stream()

    def _look_at_stream(self) -> Outcome:
        return self._do(LAND, self._stream(self.wish()), self.runs.all(now_ms=self.now_ms()), pause_ms=0)

    def _stream(self, wish: Wish) -> Job | None:
        match wish.wanted:
            case Wanted.RUNNING:
                return self.catalogue.land()
            case Wanted.DRAINED:
                return self.catalogue.drain(wish.since)
            case Wanted.STOPPED:
                return None

    def _do(self, name: str, job: Job | None, runs: Sequence[Run], *, pause_ms: int) -> Outcome:
        decision = decide(name, job, runs, now_ms=self.now_ms(), pause_ms=pause_ms)
        for run_id in decision.cancel:
            self.runs.cancel(run_id, grace_s=self.catalogue.settings.limits.shutdown_grace_s)
        if decision.step is Step.START and job is not None:
            run_id = self.runs.start(job, token=decision.token)
            return Outcome(job=name, decision=decision, wanted=True, run_id=run_id)
        return Outcome(job=name, decision=decision, wanted=job is not None)

    def _wish(self, wanted: Wanted) -> None:
        self.wishes.save(Wish(wanted=wanted, since=self._moment()))

    def _moment(self) -> str:
        return moment(self.now_ms()).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def _pause_ms(self) -> int:
        return self.catalogue.settings.limits.restart_after_failure_s * 1000


def _shown(run: Run) -> dict[str, Any]:
    ended = {} if run.live else {"ended_at_ms": run.ended_at_ms}
    return {
        "run": run.run_id,
        "job": run.name.job,
        "digest": run.name.digest,
        "slot": run.name.slot,
        "state": run.state.value,
        "detail": run.detail,
        "started_at_ms": run.created_at_ms,
        **ended,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the asker is told, and what was done on the way."""

    result: Any
    outcomes: Sequence[Outcome] = ()


def perform(pipeline: Pipeline, request: Mapping[str, Any]) -> Answer:
    """One operation, `{"op": …}` with its fields. Raises `BadJob`."""
    job = str(request.get("job", LAND))
    match request.get("op"):
        case "look":
            outcomes = pipeline.look()
            return Answer(result=[outcome.document for outcome in outcomes], outcomes=outcomes)
        case "start":
            fields = {name: value for name, value in request.items() if name not in OWN_FIELDS and value is not None}
            return _told(pipeline.start(job, fields))
        case "stop":
            return _told(pipeline.stop(job))
        case "drain":
            return _told(pipeline.drain())
        case "status":
            return Answer(result=pipeline.status())
        case other:
            raise BadJob(f"no such operation: {other}")


OWN_FIELDS = frozenset({"op", "job"})


def _told(outcome: Outcome) -> Answer:
    return Answer(result=outcome.document, outcomes=[outcome])


def stream_is_down(outcomes: Sequence[Outcome]) -> bool:
    """Whether the stream should run and doesn't: it failed, or its successor has still to start."""
    waits = {Step.WAIT, Step.STOP}
    return any(each.job == LAND and each.wanted and each.decision.step in waits for each in outcomes)
