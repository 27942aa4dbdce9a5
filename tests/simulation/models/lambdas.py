"""Lambda as AWS documents it: environments that are reused, frozen and lost, triggers, retries, time limits.

https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-error-handling.html
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from math import inf
from typing import Any

from sluice.aws_rules import find_mapping_fault
from tests.simulation.kernel.faults import Kind
from tests.simulation.kernel.scheduler import Actor, Killed
from tests.simulation.models.errors import ServiceError
from tests.simulation.models.queues import Queue, Stored

RETRIES_S = (60.0, 120.0)  # after which an asynchronous event that failed is tried again
COLD_S = 0.4
WARM_S = 0.003
POLLED_S = 0.05  # how long a trigger takes to see a message, about
REUSED = 0.9  # of the invocations that find an environment at rest
NOT_FOUND = "ResourceNotFoundException"
PACES = {"BatchSize", "MaximumBatchingWindowInSeconds", "ScalingConfig"}
OPTIONS = {"MaximumBatchingWindowInSeconds", "ScalingConfig", "FunctionResponseTypes"}

Event = Mapping[str, Any]
Done = Callable[["Outcome"], None]


@dataclass(slots=True, eq=False)
class Environment:
    """One execution environment. `kept` is what the process keeps between invocations, by the name of its cache."""

    name: str
    variables: dict[str, str]
    skew_s: float
    generation: int
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Function:
    """A function. `handler` is a module's name; `failures` the queue for asynchronous events that were given up."""

    name: str
    handler: str
    variables: dict[str, str]
    timeout_s: float
    site: Any
    failures: Queue | None = None
    concurrency: int | None = None
    idle: list[Environment] = field(default_factory=list)
    running: int = 0
    made: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an invocation: an answer, or how it failed."""

    answer: Any = None
    error: str | None = None  # the function's own, "killed", or "timed out"


@dataclass(slots=True)
class Context:
    """What a handler is told of its invocation."""

    scheduler: Any
    deadline: float
    function_name: str
    aws_request_id: str
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = ""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends it."""
        return int((self.deadline - self.scheduler.now) * 1000)


@dataclass(slots=True, eq=False)
class Trigger:
    """An event source mapping of a queue."""

    uuid: str
    queue: Queue
    function: Function
    actor: Actor
    batch_size: int = 10
    window_s: float = 0.0
    concurrency: int | None = None
    reports_items: bool = True
    enabled: bool = True
    deleted: bool = False
    settled_at: float = 0.0
    running: int = 0
    armed_at: float | None = None

    def state(self, now: float) -> str:
        """Say how it is, in Lambda's words."""
        if now < self.settled_at:
            return "Deleting" if self.deleted else ("Enabling" if self.enabled else "Disabling")
        return "Enabled" if self.enabled else "Disabled"


class Lambdas:
    """All functions of the world, their triggers and schedules. Public methods with keywords are the API's."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.functions: dict[str, Function] = {}
        self.triggers: dict[str, Trigger] = {}
        self.generation = 0
        self.errors: list[tuple[str, str]] = []  # of functions that raised, with what
        self.is_steady = False  # the environment that rested last is taken, and none goes: as few as the load needs
        self._numbers = count(1)

    # What a deployment makes

    def make(self, name: str, handler: str, variables: dict[str, str], *, timeout_s: float, **how: Any) -> Function:
        """Make a function at the caller's site."""
        function = Function(name, handler, variables, timeout_s, self.world.site, **how)
        self.functions[name] = function
        return function

    def trigger(self, function: Function, queue: Queue, **how: Any) -> Trigger:
        """Have a function read a queue."""
        number = next(self._numbers)
        actor = self.world.scheduler.actor(f"trigger-{queue.name}")
        actor.site = function.site
        made = Trigger(f"00000000-0000-4000-8000-{number:012d}", queue, function, actor, **how)
        self.triggers[made.uuid] = made
        queue.listeners.append(lambda: self._listen(made))
        self._listen(made)
        return made

    def every_minute(self, function: Function, event: Event, *, quiet: tuple[float, float] = (inf, inf)) -> None:
        """Invoke a function by the clock; every ten minutes in between these two times, when only time passes."""

        def tick() -> None:
            self.invoke_later(function, event)
            self.world.scheduler.at(self.world.now + (600 if quiet[0] < self.world.now < quiet[1] else 60), tick)

        self.world.scheduler.at(self.world.now + 60 * self.world.chance.random(), tick)

    def redeploy(self) -> None:
        """Replace all environments: those at rest now, the others when they are done."""
        self.generation += 1
        for function in self.functions.values():
            function.idle.clear()

    # Invocations

    def run(self, function: Function, event: Event, done: Done) -> None:
        """Invoke in an environment; `done` is told at the end, and must not pause."""
        scheduler = self.world.scheduler
        function.made += 1
        actor = scheduler.actor(f"{function.name}-{function.made}")
        actor.mortal, actor.site = True, function.site
        function.running += 1

        def work() -> None:
            outcome = Outcome(error="killed")
            environment: Environment | None = None
            try:
                environment, start_s = self._environment(function, actor)
                actor.environment = environment
                actor.deadline = scheduler.now + start_s + function.timeout_s
                scheduler.pause(start_s)
                scheduler.say("invoked", event)
                outcome = self._called(function, event, actor)
            except Killed:
                late = actor.deadline is not None and scheduler.now >= actor.deadline
                outcome = Outcome(error="timed out" if late else "killed")
                environment = None
            finally:
                function.running -= 1
                if environment is not None and environment.generation == self.generation:
                    function.idle.append(environment)
            scheduler.say("done", outcome)
            done(outcome)

        scheduler.start(actor, work)

    def _called(self, function: Function, event: Event, actor: Actor) -> Outcome:
        module = import_module(function.handler)
        context = Context(self.world.scheduler, actor.deadline or 0.0, function.name, actor.name)
        try:
            answer = module.handler(event, context)
        except Exception as error:  # noqa: BLE001 - Lambda reports whatever a handler raises
            self.errors.append((function.name, f"{type(error).__name__}: {error}"))
            return Outcome(error=f"{type(error).__name__}: {error}")
        return Outcome(answer=answer)

    def _environment(self, function: Function, actor: Actor) -> tuple[Environment, float]:
        """Take one that is at rest, or make one. One at rest may be gone at any time."""
        if self.is_steady and function.idle:
            return function.idle.pop(), WARM_S
        if function.idle and actor.chance.random() < REUSED:
            return function.idle.pop(actor.chance.randrange(len(function.idle))), WARM_S
        skew_s = 0.0
        if self.world.happens(Kind.SKEW):
            skew_s = (actor.chance.random() * 2 - 1) * self.world.faults.skew_ms / 1000
        made = Environment(f"{function.name}/{function.made}", function.variables, skew_s, self.generation)
        return made, COLD_S * (0.5 + actor.chance.random())

    def invoke_now(self, function: Function, event: Event) -> Outcome:
        """Invoke and wait: for an actor."""
        waiting: list[Actor] = []
        found: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            found.append(outcome)
            self.world.scheduler.wake(waiting)

        self.run(function, event, done)
        while not found:
            self.world.scheduler.wait(waiting, function.timeout_s + 10)
        return found[0]

    def invoke_later(self, function: Function, event: Event, *, tried: int = 0) -> None:
        """Invoke asynchronously: what fails is tried twice more, then it is a dead letter of the function's."""

        def done(outcome: Outcome) -> None:
            if outcome.error is None:
                return
            if tried < len(RETRIES_S):
                again = self.world.now + RETRIES_S[tried]
                self.world.scheduler.at(again, lambda: self.invoke_later(function, event, tried=tried + 1))
            elif function.failures is not None:
                self.world.put(function.failures, json.dumps(event), {"ErrorMessage": outcome.error})

        self.run(function, event, done)

    # Triggers

    def _listen(self, trigger: Trigger, *, wait_s: float | None = None) -> None:
        """See to it that the trigger looks at its queue when there is something, after its window."""
        now = self.world.now
        if not trigger.enabled or trigger.deleted:
            return
        if wait_s is None:
            polled_s = POLLED_S * (0.1 + trigger.actor.chance.random())
            full = len(trigger.queue.waiting) >= trigger.batch_size
            wait_s = polled_s + (0.0 if full else trigger.window_s)
        at_s = max(now + wait_s, trigger.settled_at)
        if trigger.armed_at is None or trigger.armed_at > at_s:
            trigger.armed_at = at_s
            self.world.scheduler.at(at_s, lambda: self._look(trigger, at_s))

    def _look(self, trigger: Trigger, at_s: float) -> None:
        if trigger.armed_at != at_s:
            return  # it has looked sooner
        trigger.armed_at = None
        scheduler = self.world.scheduler
        before, scheduler.current = scheduler.current, trigger.actor
        try:
            self._poll(trigger)
        finally:
            scheduler.current = before

    def _poll(self, trigger: Trigger) -> None:
        queue, function, now = trigger.queue, trigger.function, self.world.now
        while trigger.enabled and not trigger.deleted and queue.url in self.world.sqs.queues:
            if trigger.concurrency is not None and trigger.running >= trigger.concurrency:
                return
            if function.concurrency is not None and function.running >= function.concurrency:
                return
            comes_at = queue.next_visible_s(now)
            if comes_at is None:
                return
            if comes_at > now:
                self._listen(trigger, wait_s=comes_at - now + trigger.window_s)
                return
            messages = self.world.sqs.receive(queue, trigger.batch_size)
            if messages:
                self._invoke(trigger, messages)

    def _invoke(self, trigger: Trigger, messages: list[Stored]) -> None:
        queue = trigger.queue
        handles = [(message, message.handle) for message in messages]
        event = {"Records": [self.world.sqs.record(queue, message) for message in messages]}
        trigger.running += 1
        if self.world.happens(Kind.REDEPLOY):
            self.redeploy()

        def done(outcome: Outcome) -> None:
            trigger.running -= 1
            queue.reveal(self.world.now)
            stays = self._staying(trigger, messages, outcome)
            for message, handle in handles:
                # One that was received again meanwhile has another handle: of a FIFO queue it isn't deleted by the old.
                expired = queue.fifo and (message.handle != handle or not message.in_flight)
                if message.message_id not in stays and not expired and queue.url in self.world.sqs.queues:
                    self.world.sqs.delete(queue, message)
            self._listen(trigger)

        self.run(trigger.function, event, done)

    @staticmethod
    def _staying(trigger: Trigger, messages: list[Stored], outcome: Outcome) -> set[str]:
        """Which messages come again; all, where the function failed or its answer makes no sense."""
        every = {message.message_id for message in messages}
        if outcome.error is not None:
            return every
        if not trigger.reports_items or not outcome.answer:
            return set()
        failures = outcome.answer.get("batchItemFailures")
        if not failures:
            return set()
        failed = {failure.get("itemIdentifier") for failure in failures}
        return {each for each in failed if each} if failed <= every else every

    # The operations

    def invoke(
        self, *, FunctionName: str, InvocationType: str = "RequestResponse", Payload: str | bytes = b"{}"
    ) -> dict[str, Any]:
        function = self._function(FunctionName)
        event = json.loads(Payload)
        if function.concurrency is not None and function.running >= function.concurrency:
            raise ServiceError("TooManyRequestsException", "Rate Exceeded.", status=429)
        if InvocationType == "Event":
            self.invoke_later(function, event)
            return {"StatusCode": 202}
        outcome = self.invoke_now(function, event)
        if outcome.error is not None:
            return {
                "StatusCode": 200,
                "FunctionError": "Unhandled",
                "Payload": json.dumps({"errorMessage": outcome.error}),
            }
        return {"StatusCode": 200, "Payload": json.dumps(outcome.answer)}

    def create_event_source_mapping(
        self, *, EventSourceArn: str, FunctionName: str, BatchSize: int = 10, Enabled: bool = True, **options: Any
    ) -> dict[str, Any]:
        if options.keys() - OPTIONS:
            raise TypeError(f"CreateEventSourceMapping with {sorted(options)}")
        queue, function = self.world.sqs.by_arn.get(EventSourceArn), self._function(FunctionName)
        if queue is None or self.world.now - queue.made_at < self.world.faults.new_queue_hidden_s:
            raise ServiceError("InvalidParameterValueException", "Error occurred while ReceiveMessage. does not exist")
        if fault := find_mapping_fault({"BatchSize": BatchSize, **options}, fifo=queue.fifo):
            raise ServiceError("InvalidParameterValueException", fault)
        window_s = float(options.get("MaximumBatchingWindowInSeconds", 0))
        for standing in self.triggers.values():
            if standing.queue is queue and standing.function is function:
                raise ServiceError("ResourceConflictException", "An event source mapping already exists", status=409)
        made = self.trigger(
            function,
            queue,
            batch_size=BatchSize,
            window_s=window_s,
            concurrency=options.get("ScalingConfig", {}).get("MaximumConcurrency"),
            reports_items="ReportBatchItemFailures" in options.get("FunctionResponseTypes", ()),
            enabled=Enabled,
            settled_at=self.world.now + self.world.faults.mapping_settles_s,
        )
        return self._shown(made) | {"State": "Creating"}

    def update_event_source_mapping(self, *, UUID: str, Enabled: bool | None = None, **options: Any) -> dict[str, Any]:
        trigger = self._known(UUID)
        self._refuse_unsettled(trigger)
        if options.keys() - PACES:
            raise TypeError(f"UpdateEventSourceMapping with {sorted(options)}")
        if options:
            trigger.batch_size = options.get("BatchSize", trigger.batch_size)
            trigger.window_s = float(options.get("MaximumBatchingWindowInSeconds", trigger.window_s))
            if "ScalingConfig" in options:
                trigger.concurrency = options["ScalingConfig"].get("MaximumConcurrency")
            trigger.settled_at = self.world.now + self.world.faults.mapping_settles_s
        if Enabled is not None and trigger.enabled != Enabled:
            trigger.enabled = Enabled
            trigger.settled_at = self.world.now + self.world.faults.mapping_settles_s
            self._listen(trigger)
        return self._shown(trigger)

    def get_event_source_mapping(self, *, UUID: str) -> dict[str, Any]:
        return self._shown(self._known(UUID))

    def delete_event_source_mapping(self, *, UUID: str) -> dict[str, Any]:
        trigger = self._known(UUID)
        self._refuse_unsettled(trigger)
        trigger.deleted, trigger.enabled = True, False
        settles_s = self.world.faults.mapping_settles_s
        trigger.settled_at = self.world.now + settles_s
        if settles_s:
            self.world.scheduler.at(trigger.settled_at, lambda: self.triggers.pop(UUID, None))
        else:
            del self.triggers[UUID]
        return self._shown(trigger) | {"State": "Deleting"}

    def list_event_source_mappings(
        self, *, EventSourceArn: str | None = None, FunctionName: str | None = None
    ) -> dict[str, Any]:
        function = None if FunctionName is None else self._function(FunctionName)
        found = [
            self._shown(trigger)
            for trigger in self.triggers.values()
            if EventSourceArn in {None, trigger.queue.arn} and function in {None, trigger.function}
        ]
        return {"EventSourceMappings": found}

    def _function(self, name: str) -> Function:
        found = self.functions.get(name.rsplit(":", 1)[-1])
        if found is None:
            raise ServiceError(NOT_FOUND, f"Function not found: {name}", status=404)
        return found

    def _known(self, uuid: str) -> Trigger:
        if uuid not in self.triggers:
            raise ServiceError(NOT_FOUND, "The resource you requested does not exist.", status=404)
        return self.triggers[uuid]

    def _refuse_unsettled(self, trigger: Trigger) -> None:
        if self.world.now < trigger.settled_at:
            raise ServiceError("ResourceInUseException", "Cannot update the event source mapping", status=400)

    def _shown(self, trigger: Trigger) -> dict[str, Any]:
        return {
            "UUID": trigger.uuid,
            "EventSourceArn": trigger.queue.arn,
            "FunctionArn": trigger.function.name,
            "BatchSize": trigger.batch_size,
            "ScalingConfig": {} if trigger.concurrency is None else {"MaximumConcurrency": trigger.concurrency},
            "State": trigger.state(self.world.now),
        }
