"""Writes the results of simulations into docs/reliability.md: seeds and faults of each capability.

In the document a capability's results are between `<!-- simulation: splitting -->` and `<!-- end -->`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

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
    """Format in Markdown the number of seeds, of calls, and of each fault, the most frequent first."""
    last = first + tally.seeds - 1
    faults = ", ".join(f"`{name}` {times:,}" for name, times in tally.faults.most_common())
    came_to = f"{len(tally.failed):,} failed, {tally.calls.total():,} calls, {tally.faults.total():,} faults"
    text = f"Seeds {first:,} to {last:,}: {came_to}: {faults}."
    return "\n".join([*wrap(text, 190, break_on_hyphens=False), ""])
