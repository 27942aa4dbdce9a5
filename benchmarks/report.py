"""How a benchmark says what it found."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. `compared_to` names what `ratio` relates it to."""

    name: str
    value: float
    limit: float | None = None  # at most
    ratio: float | None = None
    compared_to: str = ""


def report(
    title: str, figures: Mapping[str, Figure], *, as_json: bool, series: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Print a table; with `as_json` the numbers follow as one line.

    `series` are figures that belong together: its name to the keys of its figures by what they were measured at.
    """
    table = Table(title=title)
    for heading in ("", "measured", "at most", "ratio", "to"):
        table.add_column(heading, justify="left" if heading in {"", "to"} else "right")
    for figure in figures.values():
        table.add_row(
            figure.name, _number(figure.value), _number(figure.limit), _number(figure.ratio), figure.compared_to
        )
    Console().print(table)
    if as_json:
        values = {key: round(figure.value, 3) for key, figure in figures.items()}
        gathered = {name: {at: values.pop(key) for at, key in keys.items()} for name, keys in (series or {}).items()}
        print(json.dumps(values | gathered))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
