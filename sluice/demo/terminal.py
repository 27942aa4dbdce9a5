"""A terminal that shows commands, and runs them in a shell."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

from sluice.errors import SluiceError
from sluice.local.cloud import tail

BEGINS_WITHIN_S = 120.0
ENDS_WITHIN_S = 30.0
LOOK_EVERY_S = 0.2


class CommandFailed(SluiceError):
    """A typed command ended with an error; the text says which."""


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A command that runs in the background, and the file with its output."""

    line: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, *, within_s: float) -> None:
        """Wait until the command ends. Raises `CommandFailed` for an error or a time-out."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"{self.line}: still runs after {within_s:.0f} s\n{tail(self.log)}") from None
        if code:
            raise CommandFailed(f"{self.line}: exit code {code}\n{tail(self.log)}")

    def wait_for_ctrl_c(self, announce: Callable[[], None]) -> None:
        """Wait for ctrl-C or the command's end, after `announce` has told the user about ctrl-C.

        A user may press ctrl-C during `announce`, which is therefore part of the wait.
        """
        with suppress(KeyboardInterrupt):
            announce()
            # A wait without a time-out would miss a signal that arrives just before it begins.
            while self.process.poll() is None:
                time.sleep(LOOK_EVERY_S)

    def wait_for_output(self, text: str) -> None:
        """Wait until the output has this text. Raises `CommandFailed` if the command ends first or takes too long."""
        deadline = time.monotonic() + BEGINS_WITHIN_S
        while text not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"{self.line}: it doesn't say {text!r}\n{tail(self.log)}")
            time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Runs commands in a folder, with only these environment variables. Only `verbose` shows what they print."""

    folder: Path
    variables: Mapping[str, str]
    out: Console
    verbose: bool = False

    def type(self, line: str, *, may_fail: bool = False) -> None:
        """Run a command until it ends. Raises `CommandFailed` with the end of its output, unless it may fail."""
        self._show(line)
        log = self.folder / "printed.log"
        with log.open("wb") as file:
            process = self._start(line, None if self.verbose else file)
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.wait()  # the command has received ctrl-C, too
                raise
        if code and not may_fail:
            raise CommandFailed(f"{line}: exit code {code}; its files are in {self.folder}\n{tail(log)}")

    @contextmanager
    def run_in_background(self, line: str, *, name: str) -> Iterator[BackgroundCommand]:
        """Run a command until the context ends, with its output in file `<name>.log`."""
        self._show(f"{line}   # in another terminal")
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = self._start(line, output, in_background=True)
        try:
            yield BackgroundCommand(line, process, log)
        finally:
            _end_session(process)

    def _start(self, line: str, output: IO[bytes] | None, *, in_background: bool = False) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own lines
            ["sh", "-c", line],  # noqa: S607 - by the shell that is there
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL if in_background else None,
            stdout=output,
            stderr=output,
            start_new_session=in_background,  # so that ctrl-C reaches only us, and we can end its child processes, too
        )

    def _show(self, line: str) -> None:
        self.out.print(f"[bold]$ {line.replace('[', chr(92) + '[')}[/]", soft_wrap=True)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT to a command's session, and SIGKILL if it doesn't end in time."""
    for number, within_s in ((signal.SIGINT, ENDS_WITHIN_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
