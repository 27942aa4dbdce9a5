"""One run: estimated, deployed, checked, counted, and always taken away again. No AWS, no terminal.

What fails is told and doesn't keep the rest from being tried: a check that fails, or hangs, costs its own result alone.
"""

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluice.errors import BadConfiguration, SluiceError

RUN_WITHIN_S = 45 * 60.0  # then all is destroyed, whatever is under way
READY_WITHIN_S = 60.0
COUNT_WITHIN_S = 180.0
READY, DEPLOY, COSTS, DESTROY = "ready", "deploy", "costs", "destroy"


class NotSo(SluiceError):
    """A check has seen something else than it should; the text says what."""


class Skipped(SluiceError):
    """A check that can't be made here; the text says why."""


class TooDear(BadConfiguration):
    """The run would cost more than it may."""


class UnknownCheck(BadConfiguration):
    """No check has this name."""


class Outcome(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check has seen, in words: where it failed or was skipped, why."""

    name: str
    outcome: Outcome
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`perform` says what it has seen. It raises `Skipped`, and anything else where it fails."""

    name: str
    within_s: float
    perform: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What was used, in words, and what it costs; None dollars where it wasn't counted."""

    usd: float | None = None
    lines: Sequence[str] = ()


class Stages(Protocol):
    """The throw-away stages. Every method may raise; what it returns is for people."""

    def ready(self) -> str:
        """Look whether account and region have what the stages need. Nothing is made."""

    def deploy(self) -> str:
        """Deploy them."""

    def bill(self) -> Bill:
        """Count what they have used by now."""

    def destroy(self) -> str:
        """End what is under way and take everything away. Raises `NotSo` with what is left, and how to remove it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run may: its dollars, and its seconds until it destroys. `keep` leaves the stages where they are.

    Raises `TooDear` where it would cost more than it may.
    """

    budget_usd: float
    estimate_usd: float
    within_s: float = RUN_WITHIN_S
    keep: bool = False

    def __post_init__(self) -> None:
        if self.estimate_usd > self.budget_usd:
            raise TooDear(f"the run may cost ${self.estimate_usd:.2f}, more than --budget-usd {self.budget_usd:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All results in order, the bill, and what the run might cost."""

    results: Sequence[Result]
    bill: Bill
    budget_usd: float

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(result.outcome is not Outcome.FAILED for result in self.results)


def chosen(checks: Sequence[Check], only: Collection[str]) -> Sequence[Check]:
    """Give the checks of these names, in their own order; all where there are no names. Raises `UnknownCheck`."""
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            raise UnknownCheck(f"no such check: {name}; there are {', '.join(names)}")
    return [check for check in checks if not only or check.name in only]


def run(
    stages: Stages,
    checks: Sequence[Check],
    plan: Plan,
    *,
    clock: Callable[[], float],
    told: Callable[[Result], None],
    progress: Callable[[str], None],
) -> Report:
    """Run all of it; each result is `told` as it comes.

    Whatever ends it, KeyboardInterrupt too, the stages are destroyed once deploying has begun, unless they are kept.
    """
    results: list[Result] = []
    bill = Bill()
    ends_at = clock() + plan.within_s

    def attempt(check: Check) -> bool:
        progress(check.name)
        results.append(performed(check, most_s=ends_at - clock(), clock=clock))
        told(results[-1])
        return results[-1].outcome is not Outcome.FAILED

    def counted() -> str:
        nonlocal bill
        bill = stages.bill()
        if bill.usd is not None and bill.usd > plan.budget_usd:
            raise NotSo(f"${bill.usd:.2f}, more than the budget of ${plan.budget_usd:g}")
        return "not counted" if bill.usd is None else f"${bill.usd:.3f} of ${plan.budget_usd:g}"

    if not attempt(Check(name=READY, within_s=READY_WITHIN_S, perform=stages.ready)):
        return Report(results=results, bill=bill, budget_usd=plan.budget_usd)
    try:
        if attempt(Check(name=DEPLOY, within_s=plan.within_s, perform=stages.deploy)):
            for check in checks:
                attempt(check)
            attempt(Check(name=COSTS, within_s=COUNT_WITHIN_S, perform=counted))
    finally:
        # Not in a thread and not by the clock: what isn't destroyed costs on.
        if not plan.keep:
            progress(DESTROY)
            results.append(_outcome_of(DESTROY, stages.destroy, clock))
            told(results[-1])
    return Report(results=results, bill=bill, budget_usd=plan.budget_usd)


def performed(check: Check, *, most_s: float, clock: Callable[[], float]) -> Result:
    """Perform a check in a thread of its own, which is left behind where it isn't done in time."""
    within_s = min(check.within_s, most_s)
    if within_s <= 0:
        return Result(name=check.name, outcome=Outcome.FAILED, detail="the run's time is up", seconds=0)
    done: queue.Queue[Result] = queue.Queue()

    def perform() -> None:
        done.put(_outcome_of(check.name, check.perform, clock))

    threading.Thread(target=copy_context().run, args=(perform,), name=check.name, daemon=True).start()
    try:
        return done.get(timeout=within_s)
    except queue.Empty:
        return Result(
            name=check.name, outcome=Outcome.FAILED, detail=f"not done within {within_s:.0f} s", seconds=within_s
        )


def _outcome_of(name: str, perform: Callable[[], str], clock: Callable[[], float]) -> Result:
    started = clock()
    try:
        outcome, detail = Outcome.PASSED, perform()
    except Skipped as reason:
        outcome, detail = Outcome.SKIPPED, str(reason)
    except Exception as error:  # noqa: BLE001 - reported: what one check provokes mustn't end the others
        outcome, detail = Outcome.FAILED, _told(error)
    return Result(name=name, outcome=outcome, detail=detail, seconds=clock() - started)


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_told, error.exceptions)))
    return str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
