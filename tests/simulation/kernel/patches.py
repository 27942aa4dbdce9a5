"""Production modules while a world is simulated: its clients, its clock, its luck, its processes in place of the real.

What is replaced is found by what it is, in every module of a function's bundle, and put back afterwards.
"""

import functools
import json
import os
import random
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jq
from aws_lambda_powertools.logging import Logger
from botocore.session import get_session

from functions import bootstrap
from functions.control import handler as control
from sluice.aws import clients, metrics
from sluice.aws.federation import peers, publisher
from sluice.aws.rendezvous import address_keys, dependencies, event_publisher
from sluice.codec import Format
from sluice.splitting.filters import patterns
from sluice.splitting.filters.jq import TIME_LIMIT_S, ProgramTimedOut, find_decision
from sluice.splitting.jq_runner import JqRunner, compile_problem
from tests.simulation.kernel import calls

if TYPE_CHECKING:
    from tests.simulation.kernel.world import World

FUNCTIONS = Path(__file__).parents[3] / "functions"
LONG_S: Any = 60.0
NEVER_ENDS = "def endless: endless; endless"  # a jq program; what has `endless` in it isn't run


class VirtualTime:
    """Stands for module `time`: the clock of the environment that asks."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970."""
        here = calls.world()
        return int((here.now + here.skew_s) * 1_000_000) * 1_000

    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns() / 1e9

    monotonic = time
    perf_counter = time

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        calls.world().scheduler.pause(seconds)


class VirtualRandom:
    """Stands for module `random`: the luck of whoever asks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(calls.world().chance, name)


class VirtualSecrets:
    """Stands for module `secrets`."""

    def choice(self, among: Any) -> Any:
        """Draw one."""
        return calls.world().chance.choice(among)

    def token_bytes(self, number: int = 32) -> bytes:
        """Draw bytes."""
        return calls.world().chance.randbytes(number)

    def token_hex(self, number: int = 32) -> str:
        """Draw bytes, in hex."""
        return self.token_bytes(number).hex()


class VirtualUuid:
    """Stands for module `uuid`."""

    def uuid4(self) -> uuid.UUID:
        """Draw one."""
        return uuid.UUID(int=calls.world().chance.getrandbits(128), version=4)


class VirtualOs:
    """Stands for module `os`: the variables of the environment that asks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    @property
    def environ(self) -> Any:
        """The variables."""
        environment = calls.world().scheduler.current.environment
        return os.environ if environment is None else environment.variables


class QuietLogger:
    """Stands for Powertools' logger: what is said goes into the trace."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        def log(message: object = "", *_: object, **fields: object) -> None:
            if calls._worlds:
                calls.world().scheduler.say(f"log {level}", (message, fields, sys.exc_info()[1]))

        return log


class CountedMetrics:
    """Stands for Powertools' metrics: they are added up for the world."""

    def __init__(self, **_: object) -> None:
        pass

    def add_dimension(self, name: str, value: str) -> None:
        """Forget the dimension."""

    def add_metric(self, name: str, _unit: object, value: float) -> None:
        """Add it up."""
        calls.world().metrics[name] += value

    def flush_metrics(self) -> None:
        """Write nothing."""


class InlineExecutor(Executor):
    """Does at once what is to be done side by side, in any order; what ends a run passes through."""

    def __init__(self, max_workers: int | None = None, **_: Any) -> None:
        self.max_workers = max_workers

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Do it, now."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given, **named))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., Any], *given: Iterable[Any], **_: Any) -> Iterator[Any]:  # type: ignore[override]
        """Do all of it, now; who asks for a result is told what was raised."""
        tasks = list(zip(*given, strict=False))
        order = list(range(len(tasks)))
        if self.max_workers != 1:
            calls.world().chance.shuffle(order)
        futures: dict[int, Future[Any]] = {}
        for place in order:
            futures[place] = self.submit(work, *tasks[place])
        return (futures[place].result() for place in range(len(tasks)))


class InlineJq:
    """Stands for the process that runs jq programs."""

    def __call__(self, program: str, document: str) -> bool | None:
        """Find the first boolean that the program outputs. Raises `ProgramTimedOut`."""
        if "endless" in program:
            calls.world().scheduler.pause(TIME_LIMIT_S)
            raise ProgramTimedOut(f"still running after {TIME_LIMIT_S:g} s")
        return _decided(program, document)

    def ensure_started(self) -> None:
        """There is nothing to start."""


@functools.lru_cache(maxsize=1_000)
def _compiled(program: str) -> Any:
    return jq.compile(program)


def _compile_problem(program: str) -> str | None:
    try:
        _compiled(program)
    except ValueError as error:
        return str(error).strip().splitlines()[0]
    return None


def _decided(program: str, document: str) -> bool | None:
    return find_decision(iter(_compiled(program).input_value(json.loads(document))))


def _handlers() -> Iterator[Any]:
    for handler in sorted(FUNCTIONS.glob("*/handler.py")):
        yield import_module(f"functions.{handler.parent.name}.handler")


HANDLERS = list(_handlers())


def _kept_by_environment(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Give what `functools.cache` would, for each environment by itself."""

    def kept_one() -> Any:
        kept = calls.world().scheduler.current.environment.kept
        if name not in kept:
            kept[name] = make()
        return kept[name]

    return kept_one


def _replacements() -> list[tuple[Any, str, Any]]:
    """Find every name in production's modules that stands for something real."""
    stand_ins: list[tuple[Any, Any]] = [
        (time, VirtualTime()),
        (random, VirtualRandom()),
        (secrets, VirtualSecrets()),
        (uuid, VirtualUuid()),
        (ThreadPoolExecutor, InlineExecutor),
        (JqRunner, InlineJq),
        (compile_problem, _compile_problem),
        (get_session, calls.Session),
    ]
    quiet = QuietLogger()
    found: list[tuple[Any, str, Any]] = []
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(("sluice.", "functions.")) or name.split(".")[1] in {"cli", "local", "demo", "peers"}:
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, Logger):
                found.append((module, attribute, quiet))
            found.extend((module, attribute, instead) for real, instead in stand_ins if value is real)
    for handler in HANDLERS:
        found.extend(
            (handler, attribute, _kept_by_environment(f"{handler.__name__}.{attribute}", value.__wrapped__))
            for attribute, value in list(vars(handler).items())
            if hasattr(value, "cache_clear") and value.__module__ == handler.__name__
        )
    found += [
        (clients, "_get_session", calls.Session),
        (clients.FastBatchSender, "install", staticmethod(lambda client: client)),
        (metrics, "EphemeralMetrics", CountedMetrics),
        (bootstrap, "os", VirtualOs()),
        (dependencies, "os", VirtualOs()),
        # What is stored is read again and again, and values that are read don't change.
        (Format, "unpack", functools.lru_cache(maxsize=1_000)(Format.unpack)),
        (Format, "from_text", functools.lru_cache(maxsize=1_000)(Format.from_text)),
        (peers, "_assume_role", lambda *_: calls.Session()),
        (publisher, "_get_client", lambda region: calls.Client("sqs", region=region)),
        # A search that the machine interrupts isn't to time out in one run and not in the next.
        (patterns.matches, "__kwdefaults__", {"time_limit_s": LONG_S}),
        (address_keys.AddressHasher.__init__, "__defaults__", _draws()),
    ]
    return found


def _draws() -> tuple[Any, ...]:
    defaults = address_keys.AddressHasher.__init__.__defaults__ or ()
    virtual = VirtualSecrets()
    return tuple(virtual.token_bytes if value is secrets.token_bytes else value for value in defaults)


CACHED_CLIENTS = (
    clients.sqs_client,
    clients.quick_sqs_client,
    clients.long_polling_sqs_client,
    clients.quick_dynamodb_client,
    clients.dynamodb_client,
    clients.lambda_client,
    event_publisher.get_events_client,
    control.client_of,
)


@functools.cache
def _all_replacements() -> list[tuple[Any, str, Any, Any]]:
    return [(owner, name, getattr(owner, name), instead) for owner, name, instead in _replacements()]


@contextmanager
def simulated(world: "World") -> Iterator[None]:
    """Have production run in this world."""
    replaced = _all_replacements()
    calls._worlds.append(world)
    for owner, name, _, instead in replaced:
        setattr(owner, name, instead)
    for cached in CACHED_CLIENTS:
        cached.cache_clear()
    try:
        yield
    finally:
        for owner, name, real, _ in replaced:
            setattr(owner, name, real)
        for cached in CACHED_CLIENTS:
            cached.cache_clear()
        calls._worlds.pop()
