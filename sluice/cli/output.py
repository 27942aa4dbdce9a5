"""What commands print on standard output: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli.terminal import note

WITHOUT_END = 100_000  # columns: wider than any table
# The colours of what stands in columns of these heads: a word that isn't here has none. rich leaves colours out where
# standard output is no terminal, and where NO_COLOR is set.
STATE_COLUMNS = frozenset({"state", "status"})
STATE_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ready", "operational", "running", "success"), "green"),
    **dict.fromkeys(("failed", "starterror", "cleanuperror", "stalled"), "red"),
    **dict.fromkeys(("ended", "closed", "cancelled", "paused"), "dim"),
    **dict.fromkeys(("starting", "resourcesready", "waiting", "connecting", "closing", "cancelling"), "yellow"),
    **dict.fromkeys(("submitted", "pending", "scheduled", "queued"), "yellow"),
}

AsJson = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what went wrong.")]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command's options ask of its output."""

    as_json: bool = False
    quiet: bool = False


_NOTHING = _Asked()
_asked: ContextVar[_Asked] = ContextVar("asked", default=_NOTHING)


@contextmanager
def spoken(*, as_json: bool, quiet: bool) -> Iterator[None]:
    """Have a command print what its options `--json` and `--quiet` ask for."""
    before = _asked.set(_Asked(as_json, quiet))
    try:
        yield
    finally:
        _asked.reset(before)


def is_json() -> bool:
    """Tell whether the command that runs prints for programs."""
    return _asked.get().as_json


def is_quiet() -> bool:
    """Tell whether the command that runs says nothing but what went wrong."""
    return _asked.get().quiet


def tell(document: Any, people: str | Callable[[], object]) -> None:
    """Say what was found or done: to programs by a document, to people by a note, or by what shows them more."""
    if is_json():
        show_json(document)
    elif is_quiet():
        return
    elif isinstance(people, str):
        note(people)
    else:
        people()


def console(*, width: int | None = None) -> Console:
    """Open standard output, in colour on a terminal; where a width is given, lines may be longer than the terminal."""
    return Console(width=width, highlight=False)


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print a name and its value a line, each value whole, however long the line gets."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        text = _cell(name, value).replace("\n", "\n" + " " * (width + 2))
        # Nothing is folded, cut or filled up: a terminal breaks a line by itself, and a copy of it stays whole.
        console().print(f"[bold]{name:<{width}}[/]  {text}", soft_wrap=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with a head, a row a line with all that is in it; numbers stand to the right.

    On a terminal that is too narrow for that it is a record a row, a value a line.
    """
    listed = [list(row) for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], int | float) for row in listed)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in listed:
        table.add_row(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
    width = console(width=WITHOUT_END).measure(table).maximum
    if not sys.stdout.isatty() or width <= console().width:
        console(width=max(width, 1)).print(table)
        return
    for number, row in enumerate(listed):
        if number:
            console().print()
        show_pairs((name, value) for name, value in zip(columns, row, strict=True) if value not in {None, ""})


def _cell(column: str, value: object) -> str:
    style = STATE_STYLES.get(str(value).casefold()) if column in STATE_COLUMNS else None
    return f"[{style}]{text_of(value)}[/]" if style else text_of(value)


def text_of(value: object) -> str:
    """Spell a cell: nothing for None, no fraction of milliseconds and the like; markup stays as it is."""
    if value is None:
        return ""
    return f"{value:.0f}" if isinstance(value, float) else escape(str(value))


def show_json(document: Any) -> None:
    """One JSON document on one line."""
    typer.echo(json.dumps(document, default=lambda value: to_builtins(value, order="deterministic")))


def time_of(at_ms: int | None) -> str:
    """Write a time for people, in UTC; nothing for never."""
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
