"""Any number of seeds from any first one, on all processors: `python -m tests.simulation --help`."""

import argparse
import os
import sys
import time

from rich.console import Console
from rich.table import Table

from tests.simulation.kernel.world import Failed, run
from tests.simulation.report import write
from tests.simulation.runs import Tally, available, explained, scenario_of, side_by_side


def main() -> int:
    """Run, print a table, and explain the first failure; 1 where there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--capability", choices=[*available(), "all"], default="all")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/reliability.md")
    asked = parser.parse_args()
    console, found = Console(), dict[str, Tally]()
    for capability in available() if asked.capability == "all" else [asked.capability]:
        began_at = time.monotonic()
        seeds = range(asked.first, asked.first + asked.seeds)
        found[capability] = side_by_side(capability, seeds, processes=asked.processes)
        console.print(_table(capability, found[capability], took_s=time.monotonic() - began_at))
    if asked.write:
        write(found, first=asked.first)
    failed = [(capability, *each) for capability, tally in found.items() for each in tally.failed]
    for capability, seed, what in failed:
        console.print(f"{capability}, seed {seed}: {what}", markup=False)
    if failed:
        capability, seed, _ = failed[0]
        try:
            run(scenario_of(capability), seed)
        except Failed as failure:
            console.print(explained(scenario_of(capability), failure), markup=False)
    return 1 if failed else 0


def _table(capability: str, tally: Tally, *, took_s: float) -> Table:
    table = Table(title=f"{capability}: {tally.seeds} seeds in {took_s:.0f} s, {len(tally.failed)} failed")
    table.add_column("fault")
    table.add_column("times", justify="right")
    table.add_column("call")
    table.add_column("times", justify="right")
    faults, calls = tally.faults.most_common(), tally.calls.most_common()
    for place in range(max(len(faults), len(calls))):
        fault = faults[place] if place < len(faults) else ("", "")
        call = calls[place] if place < len(calls) else ("", "")
        table.add_row(fault[0], str(fault[1]), call[0], str(call[1]))
    return table


if __name__ == "__main__":
    sys.exit(main())
