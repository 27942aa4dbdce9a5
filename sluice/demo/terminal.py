"""Prints the demo's commands and runs them in a shell, as if a user typed them in a terminal."""

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
    """Raised if one of the demo's commands fails. The text names the command."""


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """A shell command that runs in the background, and the file with its output (`log`)."""

    line: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, *, within_s: float) -> None:
        """Wait until the command ends. Raises `CommandFailed` if its exit code isn't 0, or after `within_s` seconds."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"{self.line}: still runs after {within_s:.0f} s\n{tail(self.log)}") from None
        if code:
            raise CommandFailed(f"{self.line}: exit code {code}\n{tail(self.log)}")

    def wait_for_ctrl_c(self, announce: Callable[[], None]) -> None:
        """Call `announce`, which tells the user to press ctrl-C, then wait for ctrl-C or the command's end.

        A user may press ctrl-C already during `announce`.
        """
        with suppress(KeyboardInterrupt):
            announce()
            # `Popen.wait` without a time-out would miss a signal that arrives just before the call.
            while self.process.poll() is None:
                time.sleep(LOOK_EVERY_S)

    def wait_for_output(self, text: str) -> None:
        """Wait until the command's output contains a text. Raises `CommandFailed` if it doesn't within two minutes."""
        deadline = time.monotonic() + BEGINS_WITHIN_S
        while text not in self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise CommandFailed(f"{self.line}: it doesn't say {text!r}\n{tail(self.log)}")
            time.sleep(LOOK_EVERY_S)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Runs shell commands in a folder, with only these environment variables. `verbose` shows the commands' output."""

    folder: Path
    variables: Mapping[str, str]
    out: Console
    verbose: bool = False

    def run(self, line: str, *, may_fail: bool = False) -> None:
        """Run a command until it ends. If it fails, raises `CommandFailed` with its last output, unless `may_fail`."""
        self._print_command(line)
        log = self.folder / "printed.log"
        with log.open("wb") as file:
            process = self._start(line, None if self.verbose else file)
            try:
                code = process.wait()
            except KeyboardInterrupt:
                process.wait()  # The command has received ctrl-C, too, and ends.
                raise
        if code and not may_fail:
            raise CommandFailed(f"{line}: exit code {code}; its files are in {self.folder}\n{tail(log)}")

    @contextmanager
    def run_in_background(self, line: str, *, name: str) -> Iterator[BackgroundCommand]:
        """Run a command in the background until the context ends. The file `<name>.log` gets the command's output."""
        self._print_command(f"{line}   # in another terminal")
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
            start_new_session=in_background,  # ctrl-C doesn't reach the session, which can be ended as a whole.
        )

    def _print_command(self, line: str) -> None:
        self.out.print(f"[bold]$ {line.replace('[', chr(92) + '[')}[/]", soft_wrap=True)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGINT to the processes of a command's session, and SIGKILL if the command doesn't end in time."""
    for number, within_s in ((signal.SIGINT, ENDS_WITHIN_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
