"""The pipeline of a site without EMR Serverless: the same operations, on local processes and folders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sluice.local.jobs import ENTRY_POINT, FileDesiredStates, LocalRuns, alone, code_key
from sluice.operations import Operation, R
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.jobs import Landing, Places, Program, Reach
from sluice.pipeline.operations import JobOutcome, JobsOperation
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.runs import JobStep
from sluice.pipeline.settings import JobLimits, JobsSettings

CONNECTIONS = 4  # to the embedded cloud, for which long polls are work
TRIGGER_S = 1  # on EMR Serverless it is longer, which makes larger files
GRACE_S = 60
HERE = "local"
SETTLES_AFTER = 4  # times that it is asked: one ends what ran, the next one starts
LIMITS = JobLimits(
    streaming=False,
    failed_attempts_per_hour=1,
    restart_after_failure_s=0,
    shutdown_grace_s=GRACE_S,
    batch_attempts=1,
    batch_timeout_minutes=0,
    statistics_at=None,
    compaction_at=None,
    compaction_days=2,
)


def landing(folder: Path, *, queue_url: str, reach: Reach) -> Landing:
    """Describe what lands in a local folder: Parquet, the one format that needs no jars."""
    places = Places(root=str(folder))
    return Landing(queue_url=queue_url, places=places, reach=reach, trigger_s=TRIGGER_S, connections=CONNECTIONS)


def settings(folder: Path, *, queue_url: str, ingress_url: str, reach: Reach) -> JobsSettings:
    """As the jobs function is told them."""
    landed = landing(folder, queue_url=queue_url, reach=reach)
    program = Program(entry_point=str(ENTRY_POINT), environment=HERE, code=code_key(), places=landed.places)
    return JobsSettings(
        application_id=HERE,
        role_arn=HERE,
        table=HERE,
        ingress_url=ingress_url,
        program=program,
        landing=landed,
        limits=LIMITS,
    )


@dataclass(frozen=True, slots=True)
class LocalPipeline:
    """Asked as the jobs function is; nobody reconciles in between, so it does at once what that does in a minute."""

    reconciler: Reconciler
    runs: LocalRuns

    @classmethod
    def of(cls, runs: LocalRuns, told: JobsSettings, now_ms: Callable[[], int]) -> "LocalPipeline":
        """With a site's folder behind it."""
        desired = FileDesiredStates(runs.folder)
        return cls(Reconciler(catalogue=Catalogue(told), runs=runs, desired=desired, now_ms=now_ms), runs)

    def ask(self, operation: Operation[R], /) -> R:
        """Perform an operation of the jobs function and give its result. Raises `NoSpark`."""
        with alone(self.runs.folder):
            for _ in range(SETTLES_AFTER):
                result = self.reconciler.perform(cast("JobsOperation", operation))
                if not (isinstance(result, JobOutcome) and result.step in {JobStep.STOP, JobStep.WAIT}):
                    break
            return cast("R", result)

    def text(self, run_id: str, *, lines: int) -> str:
        """Give the end of a run's log."""
        log = self.runs.log(run_id)
        said = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(said[-lines:])
