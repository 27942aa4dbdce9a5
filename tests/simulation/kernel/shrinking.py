"""The shortest way to a failure: what of all that went wrong in a run can be left out, and it still fails."""

from collections.abc import Callable, Sequence

from tests.simulation.kernel.faults import Decision

MAX_RUNS = 400

Fails = Callable[[frozenset[Decision]], bool]


def shrink(taken: Sequence[Decision], fails: Fails, *, max_runs: int = MAX_RUNS) -> list[Decision]:
    """Leave out half, a quarter, … each by itself, as long as it fails without: what is left, in order.

    `fails` runs with nothing but the given faults and steps.
    """
    left, runs = list(dict.fromkeys(taken)), 0
    size = max(len(left) // 2, 1)
    while left and runs < max_runs:
        start, found = 0, False
        while start < len(left) and runs < max_runs:
            without = left[:start] + left[start + size :]
            runs += 1
            if fails(frozenset(without)):
                left, found = without, True
            else:
                start += size
        if size == 1 and not found:
            break
        size = max(size // 2, 1)
    return left
