"""A standalone cluster of Spark's on loopback: a master, and workers that are different hosts to it.

`local` runs no speculative twins, and `local-cluster` none either: Spark starts a twin on another host only.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.with_spark.killed import until

WORKERS = 2  # with one core each
EXECUTOR_MB = 512
_MASTER_URL = re.compile(r"spark://127\.0\.0\.1:[1-9]\d*")


@dataclass(frozen=True)
class Cluster:
    """`master`: what a driver connects to."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def settings(self) -> dict[str, Any]:
        """What a driver program is given to run there."""
        return {"master": self.master, "conf": {"spark.executor.memory": f"{EXECUTOR_MB}m"}}

    def executors(self) -> list[int]:
        """Their processes, children of the workers."""
        mine = {str(worker.pid) for worker in self.workers}
        found = []
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and (path / "stat").read_text().rpartition(")")[2].split()[1] in mine:
                    found.append(int(path.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def kill_executors(self) -> int:
        """All at once; how many there were. Spark starts others."""
        there = self.executors()
        for executor in there:
            os.kill(executor, signal.SIGKILL)
        return len(there)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Ends with all that it started."""
    with ExitStack() as running:
        said = folder / "master.log"
        running.enter_context(_daemon(said, "master.Master", "--host", "127.0.0.1", "--port", "0"))
        until(lambda: _MASTER_URL.search(said.read_text()) is not None)
        url = _MASTER_URL.findall(said.read_text())[0]
        workers = []
        for number in range(WORKERS):
            place = ["--host", f"127.0.0.{number + 2}", "--work-dir", str(folder / f"worker-{number}")]
            size = ["--cores", "1", "--memory", f"{EXECUTOR_MB + 512}m"]
            log = folder / f"worker-{number}.log"
            workers.append(running.enter_context(_daemon(log, "worker.Worker", *place, *size, url)))
        yield Cluster(url, tuple(workers))


@contextmanager
def _daemon(log: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    import pyspark  # noqa: PLC0415  may be missing here

    home = Path(pyspark.__file__).parent
    program = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    with log.open("wb") as said:
        daemon = subprocess.Popen(program, env=os.environ | {"SPARK_HOME": str(home)}, stdout=said, stderr=said)
        try:
            yield daemon
        finally:
            daemon.terminate()
            daemon.wait()
