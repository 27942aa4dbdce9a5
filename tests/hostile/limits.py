"""What holds whatever is fed to an entry: no address in a log, bounded memory, and a process of its own for bombs."""

import contextlib
import io
import logging
import resource
import subprocess
import sys
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aws_lambda_powertools.logging import Logger

ROOT = Path(__file__).parents[2]
MIB = 2**20
DEADLINE_S = 100  # that only a hang exceeds
T = TypeVar("T")

# Addresses that are fed: for documentation (RFC 5737, RFC 3849), mapped, in hex, and a name of mDNS.
ADDRESSES = (
    "192.0.2.77",
    "198.51.100.77",
    "203.0.113.77",
    "2001:db8::77",
    "2001:DB8:0:0:0:0:0:77",
    "::ffff:192.0.2.77",
    "::ffff:c000:24d",
    "b7f2c1aa-77.local",
)


@dataclass
class Log(logging.Handler):
    """All that was logged and printed meanwhile, with what came along beside each text."""

    lines: list[str] = field(default_factory=list)
    printed: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        super().__init__()

    def __hash__(self) -> int:
        return id(self)

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self.lines.append(f"{record.getMessage()} {vars(record)!r} {trace}")

    @property
    def text(self) -> str:
        return "\n".join([*self.lines, self.printed.getvalue()])


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    """Keep what every logger says, and what is printed: metrics are."""
    log = Log()
    Logger()  # so that there is one where no function has been imported yet
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    before = [(each, each.handlers) for each in (logging.root, *known)]
    for each, _ in before:
        each.handlers = [log] if each is logging.root or not each.propagate else []
    try:
        with contextlib.redirect_stdout(log.printed):
            yield log
    finally:
        for each, handlers in before:
            each.handlers = handlers


def told(serve: Callable[[T], str], given: T) -> str:
    """Feed an entry. Whatever it was: no address in the log, and nothing happened that wasn't foreseen."""
    with logged() as log:
        said = serve(given)
    assert addresses_in(log.text) == []
    assert "Traceback" not in log.text, log.text
    return said


def addresses_in(text: str) -> list[str]:
    """Which of the addresses that are fed are in the text."""
    folded = text.lower()
    return [address for address in ADDRESSES if address.lower() in folded]


def within(megabytes: int, call: Callable[[], T]) -> T:
    """Call, and fail where it held more memory than that at once, on top of what was there."""
    tracemalloc.start()
    try:
        result = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * MIB, f"{peak / MIB:.1f} MiB, more than {megabytes}"
    return result


@dataclass(frozen=True)
class Ended:
    """How a child ended: by a signal where `code` is negative."""

    code: int
    op: str
    complained: str


def in_child(code: str, fed: str = "", *, megabytes: int = 1_024, cpu_s: int = 20) -> Ended:
    """Run a program of ours in a process that has only so much memory and processor time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * MIB, megabytes * MIB))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    done = subprocess.run(
        _command(code),
        input=fed,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=ROOT,
        preexec_fn=limit,
        timeout=DEADLINE_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.strip(), done.stderr.strip())


def _command(code: str) -> Sequence[str]:
    return [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{code}"]
