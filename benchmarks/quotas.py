"""AWS's quotas from `quotas.toml`, each with its page, for limits and the simulation."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("quotas.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota: a number of a unit. `raised` is how it can be raised, as AWS's `page` says."""

    value: int
    unit: str
    raised: str
    page: str


@cache
def quotas() -> Mapping[str, Quota]:
    """Read the file; return the quotas by name."""
    document = tomllib.loads(FILE.read_text())
    del document["on"]
    return {name: Quota(**quota) for name, quota in document.items()}


def quota(name: str) -> int:
    """Return a quota's value."""
    return quotas()[name].value
