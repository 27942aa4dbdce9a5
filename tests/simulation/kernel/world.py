"""A simulated world: models of AWS, actors in virtual time, faults; and how a scenario is run in it from a seed."""

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any

from msgspec import to_builtins

from sluice.operations import Operation, R, parse_result
from sluice.settings import Settings
from tests.simulation.kernel import calls, patches
from tests.simulation.kernel.faults import Decision, Decisions, Faults, Kind
from tests.simulation.kernel.outages import Outages
from tests.simulation.kernel.scheduler import START_S, Actor, Scheduler, Violation
from tests.simulation.models.dynamodb import DynamoDb
from tests.simulation.models.lambdas import Function, Lambdas
from tests.simulation.models.parameters import Parameters
from tests.simulation.models.queues import Queue
from tests.simulation.models.sqs import Sqs

MAX_CALLS = 100_000  # of one run: who makes more never comes to an end
INTENSITIES = (1.0, 4.0, 16.0)
SHOWN = 60  # events of a trace, in a failure's text


@dataclass(frozen=True, slots=True)
class Site:
    """An account and a region."""

    region: str = "eu-central-1"
    account: str = "123456789012"

    @property
    def role(self) -> str:
        """The id of the role that all functions there have."""
        return f"AROA{self.account}{self.region.replace('-', '').upper()}"

    def arn(self, service: str, name: str) -> str:
        """Name a resource."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{name}"


HOME = Site()


class World:
    """AWS and everybody who uses it, at one moment of virtual time. `only` is what may go wrong, for a shrunk run."""

    def __init__(self, seed: int, faults: Faults | None = None, *, only: frozenset[Decision] | None = None) -> None:
        self.seed = seed
        self.faults = Faults() if faults is None else faults
        self.scheduler = Scheduler(seed)
        self.scheduler.hub_actor.site = HOME
        # A hard life and an easy one find different faults.
        intensity = Random(f"{seed}/intensity").choice(INTENSITIES)
        self.decisions = Decisions(self.faults, intensity=intensity, only=only)
        self.sqs = Sqs(self)
        self.dynamodb = DynamoDb(self)
        self.lambdas = Lambdas(self)
        self.outages = Outages(self)
        self.parameters = Parameters(self)
        self.models: dict[str, Any] = {
            "sqs": self.sqs,
            "dynamodb": self.dynamodb,
            "lambda": self.lambdas,
            "ssm": self.parameters,
        }
        self.calls: Counter[str] = Counter()  # by operation
        self.calls_of: Counter[str] = Counter()  # by function or actor
        self.all_calls = 0
        self.metrics: defaultdict[str, float] = defaultdict(float)  # as functions publish them
        self.max_calls = MAX_CALLS
        self.pace = 1.0  # by how much calls are slower than they may be
        self.plan = self.scheduler.actor("plan")  # whose luck makes the scenario
        self.plan.site = HOME

    # What models and clients ask

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.scheduler.now

    @property
    def now_ms(self) -> int:
        """Milliseconds since 1970, by the true clock."""
        return int(self.scheduler.now * 1000)

    @property
    def skew_s(self) -> float:
        """How much the clock of the running environment is off."""
        environment = self.scheduler.current.environment
        return 0.0 if environment is None else float(environment.skew_s)

    @property
    def chance(self) -> Random:
        """The luck of who runs now."""
        return self.scheduler.current.chance

    @property
    def site(self) -> Site:
        """Where the caller is."""
        site: Site | None = self.scheduler.current.site
        return HOME if site is None else site

    @property
    def sender_id(self) -> str:
        """Who the caller is, as a message says it."""
        return f"{self.site.role}:{self.scheduler.current.name}"

    def happens(self, kind: Kind, probability: float | None = None) -> bool:
        """Whether a fault happens to who runs now."""
        return self.decisions.happens(self.scheduler.current, kind, probability)

    def counted(self, operation: str) -> None:
        """Count a call. Raises `Violation` where there are far too many."""
        self.calls[operation] += 1
        self.calls_of[self.scheduler.current.name.partition("-")[0]] += 1
        self.all_calls += 1
        if self.all_calls > self.max_calls:
            raise Violation(f"more than {self.max_calls} calls: {self.calls.most_common(5)}")

    # What a scenario says

    def spawn(self, name: str, work: Callable[[], object], *, after_s: float = 0.0, site: Site = HOME) -> Actor:
        """Have somebody do something: a producer, a consumer, a client. Faults don't kill him."""
        actor = self.scheduler.actor(name)
        actor.site = site
        return self.scheduler.start(actor, work, after_s=after_s)

    def sleep(self, seconds: float) -> None:
        """Let time pass for the running actor."""
        self.scheduler.pause(seconds)

    def client(self, service: str) -> Any:
        """Give a client to an actor that is no function; its calls have faults as any others."""
        return calls.Client(service)

    def at(self, site: Site) -> "_At":
        """Make things at a site: `with world.at(site): ...`."""
        return _At(self, site)

    def queue(self, name: str, attributes: Mapping[str, str] | None = None) -> Queue:
        """Make a queue that is there from the beginning."""
        made = self.sqs.make(name, attributes)
        made.made_at -= 3_600
        return made

    def function(self, name: str, settings: Settings, *, timeout_s: float, handler: str = "", **how: Any) -> Function:
        """Make a function; its handler is that of `functions/<name>`, where no module is given."""
        variables = {"POWERTOOLS_SERVICE_NAME": name, **settings.environment()}
        module = handler or f"functions.{name}.handler"
        return self.lambdas.make(name, module, variables, timeout_s=timeout_s, **how)

    def ask(self, function: Function, operation: Operation[R]) -> R | None:
        """Ask a function for an operation and wait; its result, or None where the invocation failed.

        Raises `RequestRefused`.
        """
        outcome = self.lambdas.invoke_now(function, to_builtins(operation))
        return None if outcome.error is not None else parse_result(operation, json.dumps(outcome.answer))

    def put(self, queue: Queue, body: str, attributes: Mapping[str, str] | None = None, **fields: Any) -> str:
        """Send a message without any fault; its id."""
        spelled = {name: {"DataType": "String", "StringValue": text} for name, text in (attributes or {}).items()}
        made = self.sqs.send_message(QueueUrl=queue.url, MessageBody=body, MessageAttributes=spelled, **fields)
        return str(made["MessageId"])

    def step(self) -> bool:
        """Whether to take the plan's next step: always, but where a run is shrunk. Ask in `build` alone."""
        return self.decisions.step(self.plan)

    def fail(self, what: str) -> None:
        """Say that an invariant doesn't hold."""
        raise Violation(what)

    def check(self, holds: object, what: str) -> None:
        """Check an invariant. Raises `Violation`."""
        if not holds:
            raise Violation(what)


class _At:
    def __init__(self, world: World, site: Site) -> None:
        self.world, self.site = world, site

    def __enter__(self) -> None:
        self.before = self.world.scheduler.current.site
        self.world.scheduler.current.site = self.site

    def __exit__(self, *_: object) -> None:
        self.world.scheduler.current.site = self.before


class Scenario(ABC):
    """What is deployed in a world, who uses it, and what always holds.

    Step invariants are raised where they break, as from an observer of the queues; those at rest by `at_rest`.
    """

    faults = Faults()
    faulty_s = 120.0  # for how long things go wrong
    settles_s = 300.0  # for how long nothing does, at most, until all is at rest
    looks_every_s = inf  # how often, meanwhile, it is asked whether all is at rest

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def build(self) -> None:
        """Deploy, and spawn who is there. It runs as the plan: its luck is `world.chance`."""

    @abstractmethod
    def at_rest(self) -> None:
        """Check what holds when all is over."""

    def is_at_rest(self) -> bool:
        """Whether nothing more will happen, so that it may end before its time."""
        return False

    def calm(self) -> None:  # noqa: B027 - most have nothing to do
        """Do what is done when faults end, as to stop somebody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run that held. `taken` is all that went wrong in it, in order."""

    seed: int
    calls: Counter[str]
    faults: Counter[str]
    taken: tuple[Decision, ...]
    world: World
    scenario: Scenario


class Failed(AssertionError):
    """A run in which something doesn't hold, with its seed, what went wrong, and how it came."""

    def __init__(self, seed: int, what: str, taken: tuple[Decision, ...], trace: list[str]) -> None:
        super().__init__(f"seed {seed}: {what}")
        self.seed, self.what, self.taken, self.trace = seed, what, taken, trace


def run(
    scenario: type[Scenario], seed: int, *, faults: Faults | None = None, only: frozenset[Decision] | None = None
) -> Result:
    """Run a scenario from a seed: build, faults, calm, rest. Raises `Failed`."""
    world = World(seed, scenario.faults if faults is None else faults, only=only)
    made = scenario(world)
    with patches.simulated(world):
        try:
            _play(world, made)
        except Violation as error:
            taken, trace = tuple(world.decisions.taken), shown(world)
            raise Failed(seed, str(error), taken, trace) from error
        except BaseException as error:
            error.add_note(f"{scenario.__name__}, seed {seed}, after {world.now - START_S:.3f} s")
            raise
        finally:
            world.scheduler.close()
    return Result(
        seed=seed,
        calls=world.calls,
        faults=world.decisions.counts,
        taken=tuple(world.decisions.taken),
        world=world,
        scenario=made,
    )


def _play(world: World, scenario: Scenario) -> None:
    scheduler = world.scheduler
    scheduler.current = world.plan
    scenario.build()
    scheduler.current = scheduler.hub_actor
    start_s = scheduler.now
    scheduler.run(start_s + scenario.faulty_s)
    world.decisions.active = False
    scenario.calm()
    end_s = scheduler.now + scenario.settles_s
    while scheduler.now < end_s and not scenario.is_at_rest():
        scheduler.run(min(scheduler.now + scenario.looks_every_s, end_s))
    scenario.at_rest()


def shown(world: World, *, last: int = SHOWN) -> list[str]:
    """Spell the last events."""
    return [
        f"{at_s:9.3f} {who:28} {what} {_short(detail)}"
        for at_s, who, what, detail in list(world.scheduler.trace)[-last:]
    ]


def _short(detail: object) -> str:
    text = repr(detail)
    with suppress(TypeError, ValueError):
        text = json.dumps(detail, default=repr)
    return text[:300]
