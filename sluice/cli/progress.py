"""How far a command is that takes a while, on standard error: a line that moves on a terminal, else a line a step."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sluice.cli.terminal import note


@dataclass(slots=True)
class Steps:
    """Counts the steps of a command as it is told them, each as it begins. May be told by several threads."""

    total: int
    _show: Callable[[int, int, str], None]
    _begun: int = field(default=0)

    def __call__(self, text: str) -> None:
        """Begin the next step."""
        self._begun += 1
        self.total = max(self.total, self._begun)
        self._show(self._begun, self.total, text)

    def expect(self, more: int) -> None:
        """Learn that there are more steps than was said; fewer, where it is negative."""
        self.total += more


@contextmanager
def steps(total: int, *, lines: bool = False) -> Iterator[Steps]:
    """Show steps while they are made. `total` is how many are expected, this far.

    With `lines` it is a line a step on a terminal too, for who has others write there meanwhile.
    """
    if lines or not sys.stderr.isatty():
        began_s = time.monotonic()
        yield Steps(total, lambda n, of, text: note(f"{n} of {of}, {time.monotonic() - began_s:.0f} s: {text}"))
        return
    columns = SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=total)
        yield Steps(total, lambda n, of, text: drawn.update(task, completed=n, total=of, description=escape(text)))
