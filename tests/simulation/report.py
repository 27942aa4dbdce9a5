"""What runs came to, written where docs/reliability.md says it: a table a capability, of its seeds, faults and calls.

In the document a capability's table stands between `<!-- simulation: splitting -->` and `<!-- end -->`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from tests.simulation.runs import Tally

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
PLACE = re.compile(r"(?P<begin><!-- simulation: (?P<capability>[a-z]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def write(tallies: Mapping[str, Tally], *, first: int, document: Path = DOCUMENT) -> None:
    """Put the tables of these capabilities in their places; others stay."""

    def made(found: re.Match[str]) -> str:
        tally = tallies.get(found["capability"])
        return found[0] if tally is None else found["begin"] + table(tally, first=first) + found["end"]

    document.write_text(PLACE.sub(made, document.read_text()))


def table(tally: Tally, *, first: int) -> str:
    """Say in Markdown how many seeds, which faults, which calls."""
    last = first + tally.seeds - 1
    came_to = f"{len(tally.failed):,} failed, {tally.calls.total():,} calls, {tally.faults.total():,} faults"
    head = f"Seeds {first:,} to {last:,}: {came_to}.\n"
    pairs = zip_longest(_cells(tally.faults), _cells(tally.calls), fillvalue=" | ")
    rows = [f"| {fault} | {call} |" for fault, call in pairs]
    return "\n".join([head, "| fault | times | call | times |", "|---|---:|---|---:|", *rows, ""])


def _cells(counts: Counter[str]) -> list[str]:
    return [f"{name} | {times:,}" for name, times in counts.most_common()]
