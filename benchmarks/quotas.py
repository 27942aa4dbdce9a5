"""AWS's quotas from `quotas.toml`, each with its page: documents and the simulation have them from here."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("quotas.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """So many of a unit; `raised` says by whom or what it grows, `page` is AWS's page that says so."""

    value: int
    unit: str
    raised: str
    page: str


@cache
def quotas() -> Mapping[str, Quota]:
    """Read the file: the quotas by their names."""
    document = tomllib.loads(FILE.read_text())
    del document["on"]
    return {name: Quota(**quota) for name, quota in document.items()}


def quota(name: str) -> int:
    """Give a quota's value."""
    return quotas()[name].value
