"""Shows the progress of a long command on standard error: an animated line on a terminal, otherwise a line per step."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sluice.cli.terminal import print_note


@dataclass(slots=True)
class StepCount:
    """Counts and shows the steps of a command as they begin. Several threads may count steps."""

    total: int
    _show_step: Callable[[int, int, str], None]
    _begun_steps: int = field(default=0)

    def __call__(self, text: str) -> None:
        """Count the next step, and show its description `text`."""
        self._begun_steps += 1
        self.total = max(self.total, self._begun_steps)
        self._show_step(self._begun_steps, self.total, text)

    def expect(self, step_count: int) -> None:
        """Add `step_count` to the expected number of steps; a negative number reduces it."""
        self.total += step_count


@contextmanager
def show_steps(total: int, *, lines: bool = False) -> Iterator[StepCount]:
    """Show a command's progress while the context is open. The caller calls the yielded object at each step.

    With `lines` each step is a line even on a terminal, for commands whose child processes print there, too.
    """
    if lines or not sys.stderr.isatty():
        began_s = time.monotonic()
        yield StepCount(
            total, lambda n, of, text: print_note(f"{n} of {of}, {time.monotonic() - began_s:.0f} s: {text}")
        )
        return
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=total)
        yield StepCount(total, lambda n, of, text: drawn.update(task, completed=n, total=of, description=escape(text)))
