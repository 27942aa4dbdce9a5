"""AWS's prices from `prices.toml`: those of one day in one region, each with its page."""

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
POLL_S = 20  # of a trigger's long poll that finds nothing
Used = Mapping[str, float]  # quantities by the prices' names


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price: dollars for `per` of a unit, of which an account has `free` each month, as AWS's `page` says."""

    usd: float
    per: int
    unit: str
    page: str
    free: int = 0

    @property
    def each(self) -> float:
        """Dollars for one unit."""
        return self.usd / self.per


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """All prices by name, as they were on that day."""

    on: date
    region: str
    prices: Mapping[str, Price]

    def usd(self, used: Used) -> float:
        """Return the dollars for this use. Raises KeyError for a use without a price."""
        return sum(self.prices[name].each * quantity for name, quantity in used.items())

    def billed_usd(self, month: Used) -> float:
        """Return the dollars for a month's use in an account without other use.

        Raises KeyError for a use without a price.

        SQS's free requests cover both kinds of queues together, and are subtracted from standard ones here.
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
    """Add up the use of several parts."""
    found: dict[str, float] = {}
    for part in parts:
        for name, quantity in part.items():
            found[name] = found.get(name, 0.0) + quantity
    return found


def times(used: Used, number: float) -> dict[str, float]:
    """Multiply a use by a number."""
    return {name: quantity * number for name, quantity in used.items()}
