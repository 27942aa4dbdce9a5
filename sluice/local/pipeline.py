"""A site's pipeline without EMR Serverless: the same operations as on AWS, applied to local processes and folders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sluice.local.jobs import ENTRY_POINT, FileDesiredStates, LocalRuns, compute_code_digest, exclusive
from sluice.operations import Operation, R
from sluice.pipeline.catalogue import JobCatalogue
from sluice.pipeline.jobs import Landing, Program, SqsEndpoint, StorageLocations
from sluice.pipeline.operations import JobOutcome, JobsOperation
from sluice.pipeline.reconciler import Reconciler
from sluice.pipeline.runs import JobStep
from sluice.pipeline.settings import JobLimits, JobsSettings

CONNECTIONS = 4  # number of receives at once: few, because long polls keep the embedded cloud busy
TRIGGER_S = 1  # seconds between batches; on EMR Serverless longer intervals make larger files
GRACE_S = 60
HERE = "local"
MAX_TRIES = 4  # reconciliations per operation: the first ends the running job, the next starts the new job
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
    """Return settings of a land job for a local folder. The tables are Parquet, the only format that needs no jars."""
    places = StorageLocations(root=str(folder))
    return Landing(
        queue_url=queue_url, places=places, sqs_endpoint=sqs_endpoint, trigger_s=TRIGGER_S, connections=CONNECTIONS
    )


def local_settings(folder: Path, *, queue_url: str, ingress_url: str, sqs_endpoint: SqsEndpoint) -> JobsSettings:
    """Return the jobs function's settings for local processes instead of EMR Serverless."""
    landed = local_landing(folder, queue_url=queue_url, sqs_endpoint=sqs_endpoint)
    program = Program(
        entry_point=str(ENTRY_POINT), environment=HERE, driver=HERE, code=compute_code_digest(), places=landed.places
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
    """Applies operations as the jobs function does, but reconciles at once, because no schedule reconciles later."""

    reconciler: Reconciler
    runs: LocalRuns

    @classmethod
    def create(cls, runs: LocalRuns, jobs_settings: JobsSettings, now_ms: Callable[[], int]) -> "LocalPipeline":
        """Create a pipeline whose desired state is kept in the folder of its runs."""
        desired = FileDesiredStates(runs.folder)
        return cls(Reconciler(catalogue=JobCatalogue(jobs_settings), runs=runs, desired=desired, now_ms=now_ms), runs)

    def ask(self, operation: Operation[R], /) -> R:
        """Apply an operation of the jobs function, and return the operation's result. Raises `NoSpark`."""
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
