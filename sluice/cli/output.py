"""How the commands speak: tables for people, JSON for programs, one red line for what failed."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:  # rich is imported where something is drawn, so that --help and --json don't wait for it
    from rich.console import Console

SIGNALLED = 128  # what a shell adds to a signal's number for the exit code
WIDTH_WITHOUT_TERMINAL = 200  # else rich would fold addresses at the 80th column of a file

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


def console() -> "Console":
    """Open standard output, in colour on a terminal."""
    from rich.console import Console  # noqa: PLC0415 - only where something is drawn

    return Console(width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL, highlight=False)


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print a name and its value a line."""
    from rich.table import Table  # noqa: PLC0415 - only where something is drawn

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, text_of(value))
    console().print(table)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with a head; numbers stand to the right."""
    from rich.table import Table  # noqa: PLC0415 - only where something is drawn

    listed = [list(row) for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], int | float) for row in listed)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in listed:
        table.add_row(*(text_of(value) for value in row))
    console().print(table)


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
    """Print what failed, in red, on standard error."""
    typer.secho(_for_a_terminal(text), fg=typer.colors.RED, err=True)


def _for_a_terminal(text: str) -> str:
    """Half a character, which JSON can name and no terminal takes, is written as a question mark."""
    return text.encode(errors="replace").decode()


def quantile(values: Sequence[float], part: float) -> float | None:
    """Give the smallest value that at least this part of all reach; None where there are none."""
    return sorted(values)[max(math.ceil(part * len(values)) - 1, 0)] if values else None
