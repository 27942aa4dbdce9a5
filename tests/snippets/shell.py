"""One shell for all commands of a document, as its reader has one terminal, and further ones for what keeps running."""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

END_WITHIN_S = 20


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended; `code` is None where it took too long."""

    code: int | None
    output: str
    errors: str


class Shell:
    """A bash that is given one command after the other and keeps its variables and its folder between them."""

    def __init__(self, folder: Path, environment: Mapping[str, str], logs: Path) -> None:
        self._logs, self._folder, self._environment = logs, folder, dict(environment)
        self._ends, ends = os.pipe()
        self._number = 0
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            cwd=folder,
            env=self._environment,
            text=True,
            process_group=0,
            pass_fds=[ends],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads hold locks here
        )
        self._say(f"exec 9>&{ends}")
        os.close(ends)

    def run(self, command: str, *, within_s: float) -> Ran:
        """Runs a command to its end."""
        program, out, errors, _ = self._write(command)
        self._say(f'{{ eval "$(cat {program})" </dev/null >{out} 2>{errors} 9>&-; echo $? >&9; }}')
        code = self._end(within_s)
        return Ran(code, out.read_text(), errors.read_text())

    def leave_running(self, command: str) -> Path:
        """Begins a command in a new terminal, which has no variables of this one; where its output goes."""
        program, out, errors, code = self._write(command)
        with out.open("w") as output, errors.open("w") as said:
            subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-c", f"(. {program}); echo $? >{code}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=said,
                cwd=self._folder,
                env=self._environment,
                process_group=self._bash.pid,  # ends with the others
            )
        return out

    def close(self) -> None:
        """Ends all that is left."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._bash.wait(END_WITHIN_S)
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        os.close(self._ends)

    def _write(self, command: str) -> list[Path]:
        """Writes down a command; its file, and those of its output, its errors and its exit code."""
        self._number += 1
        files = [self._logs / f"{self._number}.{kind}" for kind in ("sh", "out", "err", "code")]
        files[0].write_text(command)
        return files

    def _say(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n")
        self._bash.stdin.flush()

    def _end(self, within_s: float) -> int | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ends, selectors.EVENT_READ)
            if not selector.select(within_s):
                return None
        return int(os.read(self._ends, 100) or b"-1")
