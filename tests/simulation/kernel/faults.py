"""What may go wrong in a simulated world, how likely, and what of it has happened. Nothing here knows why."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol


class Kind(StrEnum):
    """A fault, or a step of the scenario's own plan: what a shrunk run may do without."""

    DUPLICATE = "duplicate"
    REORDER = "reorder"
    KILL_BEFORE = "kill_before"
    KILL_AFTER = "kill_after"
    LOST_ANSWER = "lost_answer"
    THROTTLE = "throttle"
    SLOW = "slow"
    HUNG = "hung"
    VANISHED_QUEUE = "vanished_queue"
    STALE = "stale"
    SKEW = "skew"
    REDEPLOY = "redeploy"
    OUTAGE = "outage"
    STEP = "step"  # of the scenario's plan: no fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities, each at its own occasion, and how harsh the cloud is beside them."""

    # Of every call to AWS; kills only of functions.
    kill_before: float = 0.001
    kill_after: float = 0.001
    lost_answer: float = 0.002
    throttle: float = 0.005
    slow: float = 0.003
    hung: float = 0.0005
    # Of every message that is received from a standard queue.
    duplicate: float = 0.02
    # Of every receive.
    reorder: float = 0.2
    # Of every read that need not be consistent, and every count.
    stale: float = 0.1
    # Of every queue that a scenario offers for it.
    vanished_queue: float = 0.05
    # Of every environment: its clock is off by up to `skew_ms`.
    skew: float = 0.3
    skew_ms: int = 200
    # Of every invocation, when its batch has been received.
    redeploy: float = 0.01
    # Of every site that a scenario offers for it: nobody reaches it for a while.
    outage: float = 0.5
    # Seconds for which a queue that has just been made need not be found; AWS asks to wait a second:
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
    new_queue_hidden_s: float = 0.0
    # Seconds for which a deleted queue may still answer, at most:
    # https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteQueue.html
    deleted_queue_lingers_s: float = 60.0
    # Seconds for which an event source mapping is on its way into its state, and refuses to be changed:
    # https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html
    mapping_settles_s: float = 0.0


CALM = Faults(**{field.name: 0 for field in fields(Faults)})

OF_CALLS = (Kind.KILL_BEFORE, Kind.KILL_AFTER, Kind.LOST_ANSWER, Kind.THROTTLE, Kind.SLOW, Kind.HUNG)
DEADLY = frozenset({Kind.KILL_BEFORE, Kind.KILL_AFTER})


class Chooser(Protocol):
    """Who an occasion belongs to: a name that is the same in every run of the seed, and luck of its own."""

    name: str
    chance: Random
    points: int
    mortal: bool


class Decision(NamedTuple):
    """One thing that happened: to whom, at which of its occasions."""

    who: str
    point: int
    kind: Kind


class Decisions:
    """Decides what happens, and remembers it. `intensity` is by how much more often than said calls go wrong.

    An occasion belongs to an actor, which draws the same numbers in every run of a seed: so where some of what happened
    is left out (`only` is what may happen), the rest still happens, as far as the actors come that way again.
    """

    def __init__(self, faults: Faults, *, intensity: float = 1.0, only: frozenset[Decision] | None = None) -> None:
        self.faults = faults
        self.only = only
        self.active = True  # False once the world settles
        self.taken: list[Decision] = []
        self.counts: Counter[str] = Counter()
        self._bounds = list(accumulate(intensity * getattr(faults, kind.value) for kind in OF_CALLS))
        self._any = self._bounds[-1]

    def of_call(self, who: Chooser) -> Kind | None:
        """What goes wrong with a call."""
        drawn = who.chance.random()
        who.points += 1
        if drawn >= self._any or not self.active:
            return None
        kind = OF_CALLS[bisect_right(self._bounds, drawn)]
        if kind in DEADLY and not who.mortal:
            return None
        return kind if self._may(who, kind) else None

    def happens(self, who: Chooser, kind: Kind, probability: float | None = None) -> bool:
        """Whether a fault happens here; its probability is that of its kind unless it is given."""
        drawn = who.chance.random()
        who.points += 1
        if not self.active or drawn >= (getattr(self.faults, kind.value) if probability is None else probability):
            return False
        return self._may(who, kind)

    def step(self, who: Chooser) -> bool:
        """Whether a step of the plan is taken: always, but where a run is shrunk."""
        who.points += 1
        return self._may(who, Kind.STEP)

    def _may(self, who: Chooser, kind: Kind) -> bool:
        decision = Decision(who.name, who.points, kind)
        if self.only is not None and decision not in self.only:
            return False
        self.taken.append(decision)
        if kind is not Kind.STEP:
            self.counts[kind.value] += 1
        return True
