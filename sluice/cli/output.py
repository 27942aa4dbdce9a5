"""Standard output of the commands: tables for people, JSON for programs."""

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

from sluice.cli.terminal import print_note

UNLIMITED_WIDTH = 100_000  # No table is wider than this number of characters.
# Values in columns with these headings have colours, which the library rich omits if standard output is no terminal.
STATE_COLUMNS = frozenset({"state", "status"})
STATE_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ready", "operational", "running", "success"), "green"),
    **dict.fromkeys(("failed", "starterror", "cleanuperror", "stalled"), "red"),
    **dict.fromkeys(("ended", "closed", "cancelled", "paused"), "dim"),
    **dict.fromkeys(("starting", "resourcesready", "waiting", "connecting", "closing", "cancelling"), "yellow"),
    **dict.fromkeys(("submitted", "pending", "scheduled", "queued"), "yellow"),
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")]


@dataclass(frozen=True, slots=True)
class _OutputOptions:
    """The output options (`--json` and `--quiet`) of the running command."""

    as_json: bool = False
    quiet: bool = False


_DEFAULTS = _OutputOptions()
_options: ContextVar[_OutputOptions] = ContextVar("asked", default=_DEFAULTS)


@contextmanager
def use_output_options(*, as_json: bool, quiet: bool) -> Iterator[None]:
    """Apply a command's options `--json` and `--quiet` while it runs."""
    before = _options.set(_OutputOptions(as_json, quiet))
    try:
        yield
    finally:
        _options.reset(before)


def is_json() -> bool:
    """Return whether the running command prints JSON."""
    return _options.get().as_json


def is_quiet() -> bool:
    """Return whether the running command prints only errors."""
    return _options.get().quiet


def print_result(document: Any, text_or_printer: str | Callable[[], object]) -> None:
    """Print a result: with --json the document, with --quiet nothing, else the text, or call the printer."""
    if is_json():
        show_json(document)
    elif is_quiet():
        return
    elif isinstance(text_or_printer, str):
        print_note(text_or_printer)
    else:
        text_or_printer()


def console(*, width: int | None = None) -> Console:
    """Return a console on standard output, in colour on a terminal. `width` overrides the terminal's width."""
    return Console(width=width, highlight=False)


def show_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print each pair of a name and a value on a line. Long values are never cut."""
    listed = list(pairs)
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        text = _style_cell(name, value).replace("\n", "\n" + " " * (width + 2))
        # A long line is not broken here, so that the user can copy its value from the terminal in one piece.
        console().print(f"[bold]{name:<{width}}[/]  {text}", soft_wrap=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with headings and one line per row; numbers are aligned to the right.

    If the terminal is too narrow for the table, each row is printed as several lines with one value each.
    """
    listed = [list(row) for row in rows]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for number, column in enumerate(columns):
        is_number = any(isinstance(row[number], int | float) for row in listed)
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    for row in listed:
        table.add_row(*(_style_cell(column, value) for column, value in zip(columns, row, strict=True)))
    width = console(width=UNLIMITED_WIDTH).measure(table).maximum
    if not sys.stdout.isatty() or width <= console().width:
        console(width=max(width, 1)).print(table)
        return
    for number, row in enumerate(listed):
        if number:
            console().print()
        show_pairs((name, value) for name, value in zip(columns, row, strict=True) if value not in {None, ""})


def _style_cell(column: str, value: object) -> str:
    style = STATE_STYLES.get(str(value).casefold()) if column in STATE_COLUMNS else None
    return f"[{style}]{format_cell(value)}[/]" if style else format_cell(value)


def format_cell(value: object) -> str:
    """Return the text of a table's cell: empty for None, floats without a fraction, rich's markup escaped."""
    if value is None:
        return ""
    return f"{value:.0f}" if isinstance(value, float) else escape(str(value))


def show_json(document: Any) -> None:
    """Print one JSON document on one line."""
    typer.echo(json.dumps(document, default=lambda value: to_builtins(value, order="deterministic")))


def format_time(at_ms: int | None) -> str:
    """Format a time in milliseconds since the epoch for people, in UTC; empty for None."""
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
