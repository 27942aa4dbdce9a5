"""What AWS takes for what is used, from `prices.toml`: the prices of one day in one region, each with its page."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("prices.toml")
MONTH_H = 730.0
MONTH_MIN = MONTH_H * 60
MONTH_S = MONTH_MIN * 60
POLL_S = 20  # that a trigger's long poll takes, in vain
Used = Mapping[str, float]  # quantities by the prices' names


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Dollars for `per` of a unit, of which an account has `free` each month; `page` is AWS's page that says so."""

    usd: float
    per: int
    unit: str
    page: str
    free: int = 0

    @property
    def each(self) -> float:
        """Dollars for one."""
        return self.usd / self.per


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """All prices by their names, as they were on that day."""

    on: date
    region: str
    prices: Mapping[str, Price]

    def usd(self, used: Used) -> float:
        """Dollars for what is used. Raises KeyError for what has no price."""
        return sum(self.prices[name].each * quantity for name, quantity in used.items())

    def billed_usd(self, month: Used) -> float:
        """Dollars for a month's use in an account that uses nothing else. Raises KeyError for what has no price.

        What is free of SQS is so of both kinds of queues together, and taken off standard ones here.
        """
        return sum(
            max(quantity - self.prices[name].free, 0.0) * self.prices[name].each for name, quantity in month.items()
        )


@cache
def price_list() -> PriceList:
    """Read the file."""
    document = tomllib.loads(FILE.read_text())
    on, region = document.pop("on"), document.pop("region")
    return PriceList(on=on, region=region, prices={name: Price(**price) for name, price in document.items()})


def together(*parts: Used) -> dict[str, float]:
    """Add up what parts use."""
    found: dict[str, float] = {}
    for part in parts:
        for name, quantity in part.items():
            found[name] = found.get(name, 0.0) + quantity
    return found


def times(used: Used, number: float) -> dict[str, float]:
    """Multiply."""
    return {name: quantity * number for name, quantity in used.items()}
