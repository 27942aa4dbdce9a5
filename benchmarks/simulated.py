"""Counts a rendezvous under steady load in virtual time: the deployed functions in a world without faults.

The world is that of `tests.simulation`, whose DynamoDB counts units. `benchmarks.rendezvous` measures the same on the
embedded cloud, where a busy machine distorts the result; here minutes take seconds and nothing is distorted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.units import READ, WRITE
from sluice.constructs.functions import STREAM_BATCH
from sluice.parameters import Parameters
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import run
from tests.simulation.scenarios.rendezvous import Rendezvous
from tests.simulation.scenarios.rendezvous_callers import Method
from tests.simulation.scenarios.rendezvous_watch import TABLE, WAITING

KINDS = (WRITE, READ)
INGRESS = "ingress"  # where events are published, which is counted separately
COUNTED = {"counters", "seen"}  # partitions in which events are counted
KNOWN_AFTER_S = 300.0  # then the site has counted volunteers and demand, and sweeps the first offers
COUNTED_S = 600.0
AGAIN_AFTER_S = 20.0  # if a broker gives no interval
RENDEZVOUS = Parameters().rendezvous
MOST_CALLS = 5_000_000
SEED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Requests and units per answered rendezvous, while as many are swept as arrive.

    `sqs` excludes the receives of held polls without an offer, `reads` the queries of polls without a client, and
    `writes` their events. Counting events is separate.
    """

    answered: int
    polls: int
    sqs: float
    writes: float
    reads: float
    broker_calls: float


def steady(kind: "type[Load]") -> Steady:
    """Run a load. Raises `Failed` if a check of the simulation fails."""
    load = run(kind, SEED).scenario
    assert isinstance(load, Load)
    return load.found()


@dataclass(slots=True)
class Tally:
    """The counts so far."""

    sqs: Counter[str] = field(default_factory=Counter)  # by operation; those of mailboxes separately
    units: dict[tuple[str, str], float] = field(default_factory=dict)  # by the partition's first word, and kind
    calls: Counter[str] = field(default_factory=Counter)  # of functions
    answered: int = 0
    polls: int = 0
    offers: int = 0
    offered_s: float = 0.0

    def copy(self) -> "Tally":
        """Return a copy of the current counts."""
        return replace(self, sqs=Counter(self.sqs), units=dict(self.units), calls=Counter(self.calls))


class CountedSqs:
    """The world's SQS, which counts each call first."""

    def __init__(self, sqs: Any, tally: Tally) -> None:
        self._sqs, self._tally = sqs, tally

    def __getattr__(self, operation: str) -> Any:
        def call(**parameters: Any) -> Any:
            name = parameters.get("QueueName") or parameters.get("QueueUrl", "").rsplit("/", 1)[-1]
            if name != INGRESS:
                of_mailbox = "mailbox " if name.startswith(MAILBOX_PREFIX) else ""
                self._tally.sqs[of_mailbox + operation] += 1
            return getattr(self._sqs, operation)(**parameters)

        return call


class Load(Rendezvous):
    """Offers at a steady rate, at random times, to volunteers that answer at once and obey the poll interval."""

    method = Method.SQS

    faults = CALM
    rate = 3.0
    volunteers = 400
    faulty_s = KNOWN_AFTER_S + COUNTED_S
    settles_s = 60.0
    counters_window_s = float(RENDEZVOUS.counters_window_s)

    def build(self) -> None:
        """Deploy, and schedule offers and volunteers."""
        world = self.world
        world.max_calls = MOST_CALLS
        world.lambdas.is_steady = True
        self.tally = Tally()
        for table in (TABLE, WAITING):
            world.dynamodb.make_table(table)
        world.dynamodb.capacity.meters.append(self._took)
        world.models["sqs"] = CountedSqs(world.sqs, self.tally)
        self._deploy(held_min=RENDEZVOUS.held_proxies_min)
        self.watch.stream.batch = STREAM_BATCH
        self.callers = self.make_callers()
        world.sqs.observers.append(self.watch.observe)
        for number in range(self.volunteers):
            name = f"volunteer-{number}"
            world.spawn(name, partial(self._volunteer, name), after_s=60.0 * number / self.volunteers)
        after_s, number = 60.0, 0
        while (after_s := after_s + world.chance.expovariate(self.rate)) < self.faulty_s:
            name, number = f"client-{number}", number + 1
            world.spawn(name, partial(self._offer, name), after_s=after_s)
        self.began: Tally | None = None
        self.ended: Tally | None = None
        world.scheduler.at(world.now + KNOWN_AFTER_S, self._begin)
        world.scheduler.at(world.now + self.faulty_s, self._end)

    def at_rest(self) -> None:
        """Check nothing: the scenario that this one extends has the checks."""

    def found(self) -> Steady:
        """Return the results."""
        assert self.began is not None
        assert self.ended is not None
        sqs = self.ended.sqs - self.began.sqs
        units = self._units()
        brokers = self.ended.calls["broker"] - self.began.calls["broker"]
        answered, polls = self.ended.answered - self.began.answered, self.ended.polls - self.began.polls
        idle_receives = sqs["mailbox receive_message"] - sqs["mailbox send_message"]
        idle = max(1 - answered / polls, 0.0)
        own = own_units(units)
        # Each call of the broker is a trigger's receive and delete, which no client makes. A call whose offers all wait
        # deletes none of them, but changes their visibility; the proxy function deletes them.
        all_wait = sqs["change_message_visibility_batch"]
        return Steady(
            answered=answered,
            polls=polls,
            sqs=(sqs.total() - idle_receives + 2 * brokers - all_wait) / answered,
            writes=(own[WRITE] - idle * units.get(("told", WRITE), 0.0)) / answered,
            reads=(own[READ] - idle * units.get(("waiting", READ), 0.0)) / answered,
            broker_calls=brokers / answered,
        )

    def _units(self) -> dict[tuple[str, str], float]:
        assert self.began is not None
        assert self.ended is not None
        return {key: number - self.began.units.get(key, 0.0) for key, number in self.ended.units.items()}

    def _offer(self, name: str) -> None:
        began_at = self.world.now
        self.callers.client(name, "unknown", self.method)
        self.tally.offers += 1
        self.tally.offered_s += self.world.now - began_at

    def _volunteer(self, name: str) -> None:
        number = 0
        while True:
            sid, number = f"{name}/{number}", number + 1
            self.tally.polls += 1
            client, next_poll_s = self.callers.polled(sid, "unrestricted")
            if client is not None:
                self.callers.answer(sid, client)
                self.tally.answered += 1
            self.world.sleep((next_poll_s or AGAIN_AFTER_S) * self.world.chance.uniform(0.95, 1.1))

    def _took(self, partition: str, kind: str, units: float) -> None:
        key = partition.partition("#")[0], kind
        self.tally.units[key] = self.tally.units.get(key, 0.0) + units

    def _begin(self) -> None:
        self._note()
        self.began = self.tally.copy()

    def _end(self) -> None:
        self._note()
        self.ended = self.tally.copy()

    def _note(self) -> None:
        for function in self.world.lambdas.functions.values():
            self.tally.calls[function.name] = function.made


def own_units(units: Mapping[tuple[str, str], float]) -> Mapping[str, float]:
    """Add up units by kind, without those for counting events."""
    return {kind: sum(units[key] for key in units if key[0] not in COUNTED and key[1] == kind) for kind in KINDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """Requests, units and the client function's seconds for each offer over HTTP without a proxy."""

    sqs: float
    writes: float
    reads: float
    held_s: float


class UnansweredLoad(Load):
    """Offers over HTTP at a steady rate, without proxies."""

    method = Method.HTTP
    volunteers = 0

    def unanswered(self) -> Unanswered:
        """Return the results."""
        assert self.began is not None
        assert self.ended is not None
        offers, own = self.ended.offers - self.began.offers, own_units(self._units())
        return Unanswered(
            sqs=(self.ended.sqs - self.began.sqs).total() / offers,
            writes=own[WRITE] / offers,
            reads=own[READ] / offers,
            held_s=(self.ended.offered_s - self.began.offered_s) / offers,
        )


def unanswered() -> Unanswered:
    """Run such a load. Raises `Failed` if a check of the simulation fails."""
    load = run(UnansweredLoad, SEED).scenario
    assert isinstance(load, UnansweredLoad)
    return load.unanswered()
