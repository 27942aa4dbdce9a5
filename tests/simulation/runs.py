"""Many seeds of a capability's scenario, here or side by side; the first that fails, with its shortest trace."""

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context

from tests.simulation.kernel.faults import Decision, Faults
from tests.simulation.kernel.garbage import collect_seldom
from tests.simulation.kernel.shrinking import shrink
from tests.simulation.kernel.world import Failed, Scenario, run

SEEDS = int(os.environ.get("SLUICE_SIMULATION_SEEDS", "30"))  # make test-slow runs 2,000
FIRST_SEED = int(os.environ.get("SLUICE_SIMULATION_FIRST_SEED", "0"))
GROUPS = 20  # in which a test file runs its seeds

# Each capability's scenario: module and class.
CAPABILITIES = {
    "rendezvous": ("tests.simulation.scenarios.rendezvous", "Rendezvous"),
    "splitting": ("tests.simulation.scenarios.splitting", "Splitting"),
    "repointing": ("tests.simulation.scenarios.repointing", "Repointing"),
    "federation": ("tests.simulation.scenarios.federation", "Federation"),
}


@dataclass(slots=True)
class Tally:
    """What many runs came to. `failed` are seeds and what doesn't hold."""

    seeds: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Add others' runs."""
        self.seeds += other.seeds
        self.calls += other.calls
        self.faults += other.faults
        self.failed += other.failed


def available() -> list[str]:
    """List the capabilities that have a scenario."""
    return [name for name, (module, _) in CAPABILITIES.items() if find_spec(module) is not None]


def scenario_of(capability: str) -> type[Scenario]:
    """Find a capability's scenario."""
    module, name = CAPABILITIES[capability]
    found: type[Scenario] = getattr(import_module(module), name)
    return found


def tally(capability: str, seeds: Iterable[int]) -> Tally:
    """Run seeds one after the other; a failure is noted."""
    scenario, found = scenario_of(capability), Tally()
    for seed in seeds:
        found.seeds += 1
        try:
            result = run(scenario, seed)
        except Failed as failure:
            found.failed.append((seed, failure.what))
            continue
        found.calls += result.calls
        found.faults += result.faults
    return found


def first_failure(capability: str, seeds: Iterable[int]) -> Failed | None:
    """Run seeds up to the first that fails."""
    scenario = scenario_of(capability)
    for seed in seeds:
        try:
            run(scenario, seed)
        except Failed as failure:
            return failure
    return None


def side_by_side(capability: str, seeds: range, *, processes: int) -> Tally:
    """Run seeds on some processors."""
    found, chunk = Tally(), 20
    chunks = [seeds[start : start + chunk] for start in range(0, len(seeds), chunk)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=collect_seldom) as pool:
        for each in pool.map(partial(tally, capability), chunks):
            found.add(each)
    return found


def explained(scenario: type[Scenario], failure: Failed, *, faults: Faults | None = None) -> str:
    """Spell a failure with its shortest trace: the same words, from as few faults and steps as will do."""

    def fails(only: frozenset[Decision]) -> bool:
        try:
            run(scenario, failure.seed, faults=faults, only=only)
        except Failed as again:
            return _subject(again.what) == _subject(failure.what)
        return False

    left = shrink(failure.taken, fails)
    shortest = failure
    try:
        run(scenario, failure.seed, faults=faults, only=frozenset(left))
    except Failed as again:
        shortest = again
    lines = [
        f"{scenario.__name__}, seed {failure.seed}: {shortest.what}",
        f"{len(left)} of {len(failure.taken)} faults and steps are enough:",
        *(f"  {each.kind.value} at {each.who}, occasion {each.point}" for each in left),
        "the last events:",
        *(f"  {line}" for line in shortest.trace),
    ]
    return "\n".join(lines)


def holds(scenario: type[Scenario], seeds: Iterable[int], *, faults: Faults | None = None) -> None:
    """Run seeds; the first failure is raised again with its shortest trace."""
    for seed in seeds:
        try:
            run(scenario, seed, faults=faults)
        except Failed as failure:
            raise AssertionError(explained(scenario, failure, faults=faults)) from None


def _subject(what: str) -> str:
    """Take what differs from run to run out of a failure's words."""
    return "".join(character for character in what if not character.isdigit())[:40]
