"""Writes the results of simulations into docs/reliability.md: seeds, calls and faults of each capability.

In the document a capability's results are between `<!-- simulation: splitting -->` and `<!-- end -->`.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.simulation.runs import Tally

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
PLACE = re.compile(r"(?P<begin><!-- simulation: (?P<capability>[a-z]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def write(tallies: Mapping[str, Tally], *, first: int, document: Path = DOCUMENT) -> None:
    """Write the results of these capabilities in their places; others stay."""

    def made(found: re.Match[str]) -> str:
        tally = tallies.get(found["capability"])
        return found[0] if tally is None else found["begin"] + describe(tally, first=first) + found["end"]

    document.write_text(PLACE.sub(made, document.read_text()))


def describe(tally: Tally, *, first: int) -> str:
    """Format in Markdown the number of seeds, of failed ones, of calls, and of faults."""
    seeds = f"Seeds {first:,} to {first + tally.seeds - 1:,}: {len(tally.failed):,} failed"
    return f"{seeds}, {tally.calls.total():,} calls, {tally.faults.total():,} faults.\n"
