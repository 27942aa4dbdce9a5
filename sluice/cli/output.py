"""How the commands speak: tables for people, JSON for programs, one red line for what failed."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # rich is imported where something is drawn, so that --help and --json don't wait for it
    from rich.console import Console

SIGNALLED = 128  # what a shell adds to a signal's number for the exit code
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


def tell(document: Any, people: str | Callable[[], object], *, as_json: bool, quiet: bool = False) -> None:
    """Say what was found or done: to programs by a document, to people by a note, or by what shows them more.

    Who is `quiet` says nothing to people.
    """
    if as_json:
        show_json(document)
    elif quiet:
        return
    elif isinstance(people, str):
        note(people)
    else:
        people()


def console(*, width: int | None = None) -> "Console":
    """Open standard output, in colour on a terminal; where a width is given, lines may be longer than the terminal."""
    from rich.console import Console  # noqa: PLC0415 - only where something is drawn

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
    from rich.table import Table  # noqa: PLC0415 - only where something is drawn

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
    from rich.markup import escape  # noqa: PLC0415 - only where something is drawn

    if value is None:
        return ""
    return f"{value:.0f}" if isinstance(value, float) else escape(str(value))


def show_json(document: Any) -> None:
    """One JSON document on one line."""
    from msgspec import to_builtins  # noqa: PLC0415 - only where something is shown

    typer.echo(json.dumps(document, default=lambda value: to_builtins(value, order="deterministic")))


def plain(value: Any) -> dict[str, Any]:
    """Make a value of msgspec a document, as its JSON has it."""
    from msgspec import to_builtins  # noqa: PLC0415 - only for who shows one

    document: dict[str, Any] = to_builtins(value)
    return document


def note(text: str) -> None:
    """For the person at the terminal, beside what a program reads."""
    typer.echo(_for_a_terminal(text), err=True)


def show_error(text: str) -> None:
    """Print what failed, in red where that is a terminal's and NO_COLOR isn't set, on standard error."""
    said = _for_a_terminal(text)
    typer.echo(said if os.environ.get("NO_COLOR") else typer.style(said, fg=typer.colors.RED), err=True)


def _for_a_terminal(text: str) -> str:
    """Half a character, which JSON can name and no terminal takes, is written as a question mark."""
    return text.encode(errors="replace").decode()


def quantile(values: Sequence[float], part: float) -> float | None:
    """Give the smallest value that at least this part of all reach; None where there are none."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)] if values else None
