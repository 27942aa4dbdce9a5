"""Actors in virtual time: each a greenlet, one of them running, the next one chosen by time alone.

An actor gives way where it sleeps or waits; how long that takes is drawn from its own luck, so a seed is an
interleaving. Nothing here knows of AWS.
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

START_S = 1_800_000_000.0  # the epoch second at which every world begins
TRACED = 500  # the last events that a failure can show; more would keep the garbage collector busy


class Stop(BaseException):
    """Base of what no production code may catch."""


class Killed(Stop):
    """The process that an actor ran in is gone."""


class Violation(Stop):
    """An invariant doesn't hold."""


class Unsupported(Stop):
    """A model was asked for what it doesn't know: it has to learn it, or the code has a mistake."""


class Actor:
    """One thread of what happens: a function's invocation, a producer, a client."""

    __slots__ = ("chance", "deadline", "doomed", "environment", "greenlet", "mortal", "name", "points", "site", "token")

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.chance = Random(f"{seed}/{name}")
        self.points = 0  # occasions for faults so far
        self.mortal = False  # whether faults may kill it
        self.doomed = False  # whether it is dead already, and only has to hear of it
        self.deadline: float | None = None
        self.environment: Any = None
        self.site: Any = None
        self.greenlet: greenlet | None = None
        self.token = 0  # of its next awakening: an older one is void


class Scheduler:
    """Virtual time, and who runs at it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = START_S
        self.until = START_S
        self.trace: deque[tuple[float, str, str, object]] = deque(maxlen=TRACED)
        self.switches = 0
        self.hub_actor = Actor("hub", seed)
        self.current = self.hub_actor
        self._hub = getcurrent()
        self._heap: list[tuple[float, int, Any, int]] = []
        self._order = count()
        self._failure: BaseException | None = None
        self._names: dict[str, int] = {}
        self._alive: dict[Actor, None] = {}  # in order, so that a run is the same to its end

    # What runs

    def actor(self, name: str) -> Actor:
        """Make an actor; a name that is taken gets a number."""
        taken = self._names.get(name, 0)
        self._names[name] = taken + 1
        return Actor(f"{name}.{taken}" if taken else name, self.seed)

    def start(self, actor: Actor, work: Callable[[], object], *, after_s: float = 0.0) -> Actor:
        """Have an actor do its work."""

        def run() -> None:
            try:
                work()
            except Killed:
                self.say("killed")
            except BaseException as error:  # noqa: BLE001 - it ends the run
                self._failure = self._failure or error
            finally:
                self._alive.pop(actor, None)

        actor.greenlet = greenlet(run, self._hub)
        self._alive[actor] = None
        self._push(self.now + after_s, actor, actor.token)
        return actor

    def at(self, at_s: float, callback: Callable[[], object]) -> None:
        """Have something done at a time, by nobody: it may not pause."""
        self._push(max(at_s, self.now), callback, 0)

    def run(self, until_s: float) -> None:
        """Let everything happen up to a time. Raises what an actor raised."""
        self.until = until_s
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, what, token = heapq.heappop(heap)
            if isinstance(what, Actor):
                if token != what.token or what not in self._alive or what.greenlet is None:
                    continue
                self.now = at_s
                self.current = what
                self.switches += 1
                what.token += 1
                what.greenlet.switch()
                self.current = self.hub_actor
            else:
                self.now = at_s
                what()
            if self._failure is not None:
                raise self._failure
        self.now = max(self.now, until_s)

    def close(self) -> None:
        """End all actors, without a word of theirs."""
        for actor in list(self._alive):
            actor.doomed = True
            if actor.greenlet:  # it has begun
                self.current = actor
                actor.greenlet.throw(Killed())
        self.current = self.hub_actor

    # What an actor does

    def pause(self, seconds: float) -> None:
        """Let time pass for the running actor. Raises `Killed` at its deadline."""
        actor = self.current
        if actor.doomed:
            raise Killed
        wake_s = self.now + seconds
        late = actor.deadline is not None and wake_s >= actor.deadline
        if late and actor.deadline is not None:
            wake_s = max(actor.deadline, self.now)
        heap = self._heap
        if (not heap or heap[0][0] > wake_s) and wake_s <= self.until:
            self.now = wake_s  # nobody comes before: no need to ask around
        else:
            self._push(wake_s, actor, actor.token)
            self._hub.switch()
        if late:
            actor.doomed = True
            self.say("timed out")
        if actor.doomed:
            raise Killed

    def wait(self, waiters: list[Actor], timeout_s: float) -> None:
        """Wait until somebody wakes who is in `waiters`, or the time is over. Raises `Killed` at the deadline."""
        actor = self.current
        waiters.append(actor)
        try:
            late = actor.deadline is not None and self.now + timeout_s >= actor.deadline
            wake_s = max(actor.deadline, self.now) if late and actor.deadline is not None else self.now + timeout_s
            if actor.doomed:
                raise Killed
            self._push(wake_s, actor, actor.token)
            self._hub.switch()
            if late and actor.deadline is not None and self.now >= actor.deadline:
                actor.doomed = True
            if actor.doomed:
                raise Killed
        finally:
            if actor in waiters:
                waiters.remove(actor)

    def wake(self, waiters: list[Actor]) -> None:
        """Wake all of them, now."""
        for actor in waiters:
            self._push(self.now, actor, actor.token)
        waiters.clear()

    def kill(self, actor: Actor) -> None:
        """Have another actor die where it stands."""
        actor.doomed = True
        self._push(self.now, actor, actor.token)

    def say(self, what: str, detail: object = "") -> None:
        """Put a line into the trace."""
        self.trace.append((self.now - START_S, self.current.name, what, detail))

    def _push(self, at_s: float, what: object, token: int) -> None:
        heapq.heappush(self._heap, (at_s, next(self._order), what, token))
