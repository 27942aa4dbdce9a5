"""Prints the results of a benchmark."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number. `compared_to` names the base of `ratio`."""

    name: str
    value: float
    limit: float | None = None  # the maximum
    ratio: float | None = None
    compared_to: str = ""


def report(
    title: str, figures: Mapping[str, Figure], *, as_json: bool, series: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Print a table; with `as_json` a line with the numbers follows.

    `series` are figures that belong together: by the series' name, the keys of its figures by the value at which they
    were measured.
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
