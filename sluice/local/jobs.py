"""Runs the pipeline's jobs as local processes: an adapter for `sluice.pipeline.reconciler.JobRuns`.

Jobs get the same arguments as on AWS, and the same code decides when jobs run. A run has three files in the site's
folder: a record, a log and, after its end, an exit code.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.aws.connections import remove_aws_variables
from sluice.building.project import PROJECT
from sluice.errors import BadConfiguration
from sluice.local.cloud import BUILD
from sluice.local.job_process import SUFFIX
from sluice.local.processes import is_running
from sluice.pipeline.jobs import Job
from sluice.pipeline.runs import DESIRED_STATE, DesiredState, Run, RunName, RunState

ENTRY_POINT = PROJECT.spark_folder / "sluice_job.py"
SPARK = PROJECT.spark_folder  # The folder of the jobs' packages
SPARK_PYTHON = "SLUICE_SPARK_PYTHON"
ENVIRONMENT_MARKERS = "demo", "ready"  # files that mark Spark environments created by the Makefile
JOBS_FOLDER = "pipeline"  # folder of local jobs in a cloud's folder, with a folder for each site
KEPT_RUNS = 20
CHECK_INTERVAL_S = 0.1
KILL_TIMEOUT_S = 10.0


class NoSpark(BadConfiguration):
    """No local Spark was found. The error's text says how to install Spark."""


def find_spark_python(given_path: str | None) -> Path:
    """Find a Python with PySpark: the given path, the environment variable's path, or the Python of `make test-spark`.

    Raises `NoSpark`.
    """
    chosen = given_path or os.environ.get(SPARK_PYTHON)
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise NoSpark(f"{chosen} is not an executable Python: set --spark-python, or set {SPARK_PYTHON}")
        return Path(chosen)
    pythons = BUILD.glob("spark-*/bin/python")
    made = [
        python for python in pythons if any((python.parents[1] / marker).exists() for marker in ENVIRONMENT_MARKERS)
    ]
    if not made:
        raise NoSpark(
            f"there is no local Spark: `make test-spark` makes one under {BUILD}, "
            f"or name a Python that has PySpark with --spark-python or {SPARK_PYTHON}"
        )
    versions = {python: python.parents[1].name.partition("-")[2].split(".") for python in made}
    return max(made, key=lambda python: [int(part) for part in versions[python] if part.isdigit()])


def compute_code_digest() -> str:
    """Return a digest of the code that jobs run."""
    digest = hashlib.sha256(ENTRY_POINT.read_bytes())
    for folder in (SPARK / "sluice_jobs", SPARK / "sluice_spark", PROJECT.sources / "sluice"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def build_command(python: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs a job."""
    return [str(python), str(ENTRY_POINT), *arguments]


def build_job_environment(python: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment variables: this process's without AWS settings, `variables`, and Python's paths."""
    path = os.pathsep.join(
        part for part in (str(SPARK), str(PROJECT.sources), os.environ.get("PYTHONPATH", "")) if part
    )
    return {
        **remove_aws_variables(os.environ),
        **variables,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": str(python),
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that only one process at a time starts or cancels the folder's jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRuns:
    """The job runs in one folder. `variables` select the site. A Python with PySpark is needed only to start a run."""

    folder: Path
    given_python: str | None
    variables: Mapping[str, str]

    def list_runs(self, *, now_ms: int) -> Sequence[Run]:  # noqa: ARG002 - the port's: here they are few
        """List the runs whose records are in the folder."""
        return [self._run(record) for record in self._list_record_files()]

    def start(self, job: Job, *, token: str) -> str:  # noqa: ARG002 - the port's: who starts is alone
        """Start a process for the job, and delete the files of old runs."""
        python = find_spark_python(self.given_python)
        ended = [record for record in self._list_record_files() if not self._run(record).is_live]
        for old in ended[: -KEPT_RUNS or None]:
            for file in self._folder.glob(f"{old.stem}.*"):
                file.unlink()
        self._folder.mkdir(parents=True, exist_ok=True)
        record = self._folder / f"{time.time_ns() // 1_000_000}-{job.name}.json"
        with self.log(record.stem).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                [sys.executable, "-m", "sluice.local.job_process", str(record), *build_command(python, job.arguments)],
                cwd=PROJECT.workspace,
                env=build_job_environment(python, self.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C doesn't reach the job; `cancel` ends its JVM.
            )
        self._write(record, {"name": str(RunName.from_job(job)), "pid": process.pid, "arguments": list(job.arguments)})
        return record.stem

    def cancel(self, run_id: str, *, grace_s: int) -> None:
        """Send SIGTERM to a run, then SIGKILL if it hasn't ended after `grace_s` seconds. Waits for the run's end."""
        record = self._folder / f"{run_id}.json"
        fields = json.loads(record.read_text())
        self._write(record, fields | {"cancelled": True})
        with contextlib.suppress(ProcessLookupError):
            os.kill(fields["pid"], signal.SIGTERM)
        if not _wait_for_end(record, fields["pid"], within_s=grace_s):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(fields["pid"], signal.SIGKILL)
            _wait_for_end(record, fields["pid"], within_s=KILL_TIMEOUT_S)

    def log(self, run_id: str) -> Path:
        """Return the path of a run's log file."""
        return self._folder / f"{run_id}.log"

    def _run(self, record: Path) -> Run:
        fields, ended = json.loads(record.read_text()), record.with_suffix(SUFFIX)
        name = RunName.parse(fields["name"])
        if name is None:
            raise BadConfiguration(f"{record} names no job: delete it")
        last = ended if ended.exists() else record
        state, detail = RunState.FAILED, "exit code none: it was killed"
        if not ended.exists() and is_running(fields["pid"], str(record)):
            state = RunState.CANCELLING if fields.get("cancelled") else RunState.RUNNING
            detail = f"process {fields['pid']}"
        elif fields.get("cancelled"):
            state, detail = RunState.CANCELLED, ""
        elif ended.exists():
            code = ended.read_text()
            state, detail = (RunState.SUCCESS, "") if code == "0" else (RunState.FAILED, f"exit code {code}")
        return Run(
            run_id=record.stem,
            name=name,
            state=state,
            created_at_ms=int(record.stem.partition("-")[0]),
            ended_at_ms=int(last.stat().st_mtime * 1000),
            detail=detail,
        )

    def _write(self, record: Path, fields: Mapping[str, object]) -> None:
        unfinished = record.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(fields))
        unfinished.replace(record)

    def _list_record_files(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))

    @property
    def _folder(self) -> Path:
        return self.folder / "runs"


def _wait_for_end(record: Path, pid: int, *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_running(pid, str(record)):
        if time.monotonic() > deadline:
            return False
        time.sleep(CHECK_INTERVAL_S)
    return True


def end_all(folder: Path, *, grace_s: int) -> int:
    """Cancel the runs of all sites below a folder, and return the number of cancelled runs."""
    ended = 0
    for site in sorted(folder.glob("*/runs")):
        runs = LocalRuns(folder=site.parent, given_python=None, variables={})
        for run in runs.list_runs(now_ms=0):
            if run.is_live:
                runs.cancel(run.run_id, grace_s=grace_s)
                ended += 1
    return ended


@dataclass(frozen=True, slots=True)
class FileDesiredStates:
    """Keeps the jobs' desired state in a file: an adapter for `sluice.pipeline.reconciler.DesiredStates`."""

    folder: Path

    def load(self) -> DesiredState | None:
        """Read the last saved state; None before the first. Raises `BadSnapshot` if another version wrote the file."""
        return DESIRED_STATE.from_text(self._file.read_text()) if self._file.exists() else None

    def save(self, state: DesiredState) -> None:
        """Replace the saved state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(DESIRED_STATE.text(state))

    @property
    def _file(self) -> Path:
        return self.folder / "desired-state.json"
