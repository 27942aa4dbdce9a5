"""The demo's three Spark jobs: what EMR Serverless runs, with its arguments, on this machine.

A JVM and a session take ten seconds of a processor, so they begin while the rest is deployed, behind all that runs
meanwhile, and wait until they are let go.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import SluiceError
from sluice.local.cloud import tail
from sluice.local.jobs import environment
from sluice.project import PROJECT

# Of jobs that last seconds: what the second compiler makes faster they don't run often enough.
BRIEF_JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
WITHIN_S = 240.0
# Niceness: of a job's processes, and of its session of them until it is let go. Linux shares the processors out among
# sessions first, and that between processes counts within one; only the sessions' may be taken back.
NICE, HELD_NICE = 10, 19


class JobFailed(SluiceError):
    """A Spark job ended with an error; the text has the end of what it said."""


@dataclass(frozen=True, slots=True)
class HeldJob:
    """One that has begun, and where its output goes."""

    name: str
    log: Path
    process: "subprocess.Popen[bytes]"

    def let_go(self, arguments: Sequence[str]) -> None:
        """Give it its arguments, once, and its share of the processors."""
        _set_session_nice(self.process.pid, 0)
        if self.process.stdin is not None:  # as it is begun
            with suppress(BrokenPipeError), self.process.stdin as told:  # of one that failed waiting for it tells
                told.write(json.dumps(list(arguments)).encode() + b"\n")

    @property
    def runs(self) -> bool:
        """Whether it hasn't ended."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Have it end after its batch. Raises `JobFailed`."""
        self.process.terminate()
        self.wait()

    def wait(self) -> None:
        """Until it has ended. Raises `JobFailed`."""
        try:
            code = self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"{self.name}: still runs after {WITHIN_S:.0f} s\n{tail(self.log)}") from None
        if code:
            raise JobFailed(f"{self.name}: exit code {code}\n{tail(self.log)}")


@dataclass(frozen=True, slots=True)
class Jobs:
    """Those that land what the consumer gets and what the session gets, and the one that counts what was landed."""

    main: HeldJob
    session: HeldJob
    statistics: HeldJob

    @property
    def landing(self) -> Sequence[HeldJob]:
        """Those that run until they are stopped."""
        return self.main, self.session


@contextmanager
def held(python: Path, variables: Mapping[str, str], logs: Path) -> Iterator[Jobs]:
    """Begin them, and end them with the context. `variables` lead them to their site."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        names = "main", "session", "statistics"
        yield Jobs(*(running.enter_context(_begun(python, variables, logs / f"{name}.log")) for name in names))


@contextmanager
def _begun(python: Path, variables: Mapping[str, str], log: Path) -> Iterator[HeldJob]:
    with log.open("wb") as said:
        process = subprocess.Popen(  # noqa: S603 - our own arguments
            [str(python), "-m", "sluice.demo.held_job"],
            cwd=PROJECT.workspace,
            env=environment(python, {**variables, **BRIEF_JVM}),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            bufsize=0,
            start_new_session=True,  # so that ctrl-C reaches us alone, and Spark's JVM is ended with it
        )
    try:
        _set_session_nice(process.pid, HELD_NICE)
        # Also of the JVM that it starts; nobody but root may go before where we are.
        os.setpriority(os.PRIO_PROCESS, process.pid, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        yield HeldJob(log.stem, log, process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _set_session_nice(leader: int, nice: int) -> None:
    """See `man 7 sched`, autogroups. Where there are none, the processes' own niceness counts among all."""
    with suppress(OSError):
        Path(f"/proc/{leader}/autogroup").write_text(str(nice))
