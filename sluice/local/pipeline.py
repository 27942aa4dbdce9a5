"""The pipeline of a site without EMR Serverless: the same operations, applied to local processes and folders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sluice.local.jobs import ENTRY_POINT, FileDesiredStates, LocalRuns, code_digest, exclusive
from sluice.operations import Operation, R
from sluice.pipeline.catalogue import Catalogue
from sluice.pipeline.jobs import Landing, Program, SqsEndpoint, StorageLocations
from sluice.pipeline.operations import JobOutcome, JobsOperation
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.runs import JobStep
from sluice.pipeline.settings import JobLimits, JobsSettings

CONNECTIONS = 4  # number of receives at once, small because long polls keep the embedded cloud busy
TRIGGER_S = 1  # seconds between batches, fewer than on EMR Serverless, where longer intervals make larger files
GRACE_S = 60
HERE = "local"
MAX_TRIES = 4  # maximum number of attempts: the first ends the running job, the next starts the new job
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
    idle_timeout_minutes=0,
)


def local_landing(folder: Path, *, queue_url: str, sqs_endpoint: SqsEndpoint) -> Landing:
    """Describe a job that lands messages in a local folder, as Parquet, the only format that needs no jars."""
    places = StorageLocations(root=str(folder))
    return Landing(
        queue_url=queue_url, places=places, sqs_endpoint=sqs_endpoint, trigger_s=TRIGGER_S, connections=CONNECTIONS
    )


def local_settings(folder: Path, *, queue_url: str, ingress_url: str, sqs_endpoint: SqsEndpoint) -> JobsSettings:
    """Return settings of the type that the jobs function uses, for local processes."""
    landed = local_landing(folder, queue_url=queue_url, sqs_endpoint=sqs_endpoint)
    program = Program(
        entry_point=str(ENTRY_POINT), environment=HERE, driver=HERE, code=code_digest(), places=landed.places
    )
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
    """Applies operations like the jobs function, but reconciles at once, because no schedule does so every minute."""

    reconciler: Reconciler
    runs: LocalRuns

    @classmethod
    def create(cls, runs: LocalRuns, jobs_settings: JobsSettings, now_ms: Callable[[], int]) -> "LocalPipeline":
        """Create the pipeline, whose desired state is kept in the runs' folder."""
        desired = FileDesiredStates(runs.folder)
        return cls(Reconciler(catalogue=Catalogue(jobs_settings), runs=runs, desired=desired, now_ms=now_ms), runs)

    def ask(self, operation: Operation[R], /) -> R:
        """Apply an operation of the jobs function and return its result. Raises `NoSpark`."""
        with exclusive(self.runs.folder):
            for _ in range(MAX_TRIES):
                result = self.reconciler.apply(cast("JobsOperation", operation))
                if not (isinstance(result, JobOutcome) and result.step in {JobStep.STOP, JobStep.WAIT}):
                    break
            return cast("R", result)

    def read_log(self, run_id: str, *, lines: int) -> str:
        """Return the last lines of a run's log."""
        log = self.runs.log(run_id)
        log_lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(log_lines[-lines:])
