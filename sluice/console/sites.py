"""Reads the watched sites with the caller's credentials, in rounds of one second. All pages share a round's results.

A round makes at most `CALLS_PER_ROUND` calls to AWS. Control functions come first. Of similar items, such as queues,
those that have waited longest come first. Reads that do not fit into a round are done in later rounds.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sluice.aws.connections import Connection
from sluice.aws.deployment import NotDeployed, StackView
from sluice.errors import SluiceError
from sluice.operations import QueueDepth
from sluice.operator.functions import ControlClient
from sluice.operator.pipelines import PipelineClient
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import SiteClient
from sluice.stages import add_stage_prefix

T = TypeVar("T")
CACHED_S = 1.0
HERE = SiteName(None)  # This is the site of the caller's own AWS settings.
CALLS_PER_ROUND = 10  # A round (one second) has at most this number of calls to AWS.
STACKS_INTERVAL_S = 60.0  # The outputs of stacks are cached for this number of seconds.
ABSENT_INTERVAL_S = 10.0  # The outputs are cached for this number of seconds if a stack isn't deployed.
DEPTH_INTERVAL_S = 4.0
CALLS_RESERVED_BY_DEPTHS = 3  # Reading queues' depths leaves at least this number of a round's calls to other reads.
TURN_KEPT_S = 15.0  # An item that no page requests for this number of seconds doesn't delay other items.
CACHE_EXPIRY_S = 600.0  # An item that no page requests for this number of seconds is removed from the cache.
METRICS_INTERVAL_S = 60.0  # CloudWatch has one value per minute, and charges for each metric read.
LOCAL_METRICS_INTERVAL_S = 2.0
LAG_INTERVAL_S = 60.0
UNKNOWN_DEPTH = -1  # This value stands for a queue's depth that has not been read yet.
Document = Mapping[str, Any]
Query = Mapping[str, str]


@dataclass(slots=True)
class CachedResult:
    """The last result or error of reading an item, and the time of the read in monotonic seconds."""

    read_at_s: float
    value: Any = None
    error: SluiceError | None = None


@dataclass(slots=True)
class SiteCache:
    """Results of reads, and the pages' state, that a site keeps between rounds. Thread-safe."""

    results: dict[object, CachedResult] = field(default_factory=dict)
    stacks: Mapping[str, StackView] | None = None
    outputs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    absent_stacks: dict[str, SluiceError] = field(default_factory=dict)  # The keys are names of undeployed stacks.
    stacks_read_at_s: float = -math.inf
    # The time at which each item was last requested, by kind of item, in monotonic seconds.
    requested_at_s: dict[str, dict[object, float]] = field(default_factory=dict)
    calls: int = 0  # the number of calls to AWS since the console's start
    page_states: dict[str, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    now_s: Callable[[], float] = time.monotonic

    def count_call(self, **_: object) -> None:
        """Handle botocore's event `before-call`: count a call to AWS. Retries are not counted."""
        with self.lock:
            self.calls += 1

    def get_state(self, name: str, make: Callable[[], T]) -> T:
        """Return a page's state by its name. `make` creates new state under a lock, and therefore must not call AWS."""
        with self.lock:
            if name not in self.page_states:
                self.page_states[name] = make()
            state: T = self.page_states[name]
            return state


Connect = Callable[[SiteName], Connection]


class CallLimitedSite(SiteClient):
    """Reads a site within one round's budget of AWS calls."""

    def __init__(
        self,
        connection: Connection,
        memory: SiteCache,
        *,
        is_local: bool,
        calls: int,
        name: SiteName = HERE,
        landed: Path | None = None,
        connect: Connect = SiteName.connect,
    ) -> None:
        super().__init__(connection, is_local=is_local)
        self.memory, self.name, self.connect, self._landed = memory, name, connect, landed
        self._left = calls
        self._reserved = 0
        self._spending = Lock()

    def spend_calls(self, calls: int, *, leaving: int = 0) -> bool:
        """Take AWS calls from the round's budget. Returns False if fewer than `leaving` would remain."""
        with self._spending:
            if calls and self._left - leaving < calls:
                return False
            self._left -= calls
            return True

    def reserve_calls(self, functions: int) -> None:
        """Reserve calls of the round's budget for this number of functions that will be invoked later in the round."""
        with self._spending:
            self._left -= functions
            self._reserved += functions

    def _spend_on_function(self) -> None:
        with self._spending:
            if self._reserved:
                self._reserved -= 1
            else:
                self._left -= 1  # A function is invoked even if this exceeds the budget.

    def read_cached_in_turn(
        self, kind: str, name: object, task: Callable[[], T], *, every_s: float, leaving: int = 0
    ) -> T | None:
        """Read one of several similar items, or return its cached result. Items that waited longest are read first."""
        now_s = self.memory.now_s()
        with self.memory.lock:
            requested_at_s = self.memory.requested_at_s.setdefault(kind, {})
            requested_at_s[name] = now_s
            for other in [other for other, at_s in requested_at_s.items() if now_s - at_s > CACHE_EXPIRY_S]:
                del requested_at_s[other]
                self.memory.results.pop((kind, other), None)
            mine_s = self._last_read_at_s(kind, name)
            others = (other for other, at_s in requested_at_s.items() if now_s - at_s <= TURN_KEPT_S)
            before = sum(self._last_read_at_s(kind, other) < mine_s for other in others)
        has_turn = before < self._left - leaving
        return self.read_cached((kind, name), task, every_s=every_s if has_turn else math.inf, leaving=leaving)

    def _last_read_at_s(self, kind: str, name: object) -> float:
        known = self.memory.results.get((kind, name))
        return -math.inf if known is None else known.read_at_s

    def read_cached(
        self, name: object, task: Callable[[], T], *, every_s: float, calls: int = 1, leaving: int = 0
    ) -> T | None:
        """Return a task's cached result. Runs the task if the result is older than `every_s` and enough calls are left.

        Returns None before the task's first run. Raises the error of the last run.
        """
        now_s = self.memory.now_s()
        known = self.memory.results.get(name)
        if (known is None or now_s - known.read_at_s >= every_s) and self.spend_calls(calls, leaving=leaving):
            try:
                known = CachedResult(now_s, task())
            except SluiceError as error:
                known = CachedResult(now_s, error=error)
            self.memory.results[name] = known
        if known is None:
            return None
        if known.error is not None:
            raise known.error.with_traceback(None)  # The old traceback would keep the frames of earlier rounds alive.
        value: T = known.value
        return value

    def list_stacks(self) -> Mapping[str, StackView]:
        """Return all stacks of the account and region, by name. Raises the errors of `list_stacks`."""
        if self.memory.stacks is None:
            self.run_once("call for stacks", partial(self.spend_calls, 1)).result()
            self.memory.stacks = super().list_stacks()
        return self.memory.stacks

    def read_outputs(self, stack: str) -> Mapping[str, str]:
        """Return the outputs of a stack, named without the stage. Raises `NotDeployed` and `list_stacks`' errors."""
        known, absent = self.memory.outputs, self.memory.absent_stacks
        if stack in absent:
            raise absent[stack].with_traceback(None)
        if stack not in known:
            if add_stage_prefix(stack, self.connection.stage) not in self.list_stacks():
                # The outputs may be in Parameter Store, which takes another call.
                self.run_once(f"call for {stack}", partial(self.spend_calls, 1)).result()
            try:
                known[stack] = super().read_outputs(stack)
            except NotDeployed as error:
                absent[stack] = error
                raise
        return known[stack]

    def find_client(self, where: tuple[str, str]) -> ControlClient:
        """Find a function by its stack and output, and take its invocation from the budget. Raises `NotUsable`."""
        client = super().find_client(where)
        self._spend_on_function()
        return client

    def connect_pipeline(self) -> PipelineClient:
        """Connect to the pipeline, and take an invocation of its function from the budget. Raises `NotUsable`."""
        pipeline = super().connect_pipeline()
        if not self.is_local:
            self._spend_on_function()
        return pipeline

    def find_jobs_folder(self) -> Path:
        """Return the folder with the Spark jobs' data of a local site. Only the first call requests the account."""
        if self._landed is not None:
            return self._landed
        known = self.memory.get_state("jobs folder", list[Path])
        if not known:
            self.spend_calls(1)
            known.append(super().find_jobs_folder())
        return known[0]

    def start_reading_depth(self, url: str) -> Future[QueueDepth]:
        """Start reading a queue's depth, or return the cached depth. `UNKNOWN_DEPTH` if it has never been read."""
        return self.run_once(url, partial(self._read_depth, url))

    def _read_depth(self, url: str) -> QueueDepth:
        ask = partial(super().read_depth, url)
        with suppress(SluiceError):
            if url in self._read_sweeper_urls():
                return self.read_rendezvous().result().depths[url]
        depth = self.read_cached_in_turn("depth", url, ask, every_s=DEPTH_INTERVAL_S, leaving=CALLS_RESERVED_BY_DEPTHS)
        return QueueDepth(visible=UNKNOWN_DEPTH, in_flight=UNKNOWN_DEPTH) if depth is None else depth

    def read_depths(self, urls: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Read the depth of each queue, by URL. Values are None if a queue wasn't read yet. Raises `CallFailed`."""
        return {
            url: {name: None if value == UNKNOWN_DEPTH else value for name, value in depth.items()}
            for url, depth in super().read_depths(urls).items()
        }

    def read_lags(self, queues: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Any]]:
        """Read the lags of routes, at most a minute old. Raises `CallFailed`."""
        read_lags = super().read_lags
        return self.read_cached("lags", lambda: read_lags(queues), every_s=LAG_INTERVAL_S) or {}

    @property
    def metrics_every_s(self) -> float:
        """The maximum age of cached metrics in seconds."""
        return LOCAL_METRICS_INTERVAL_S if self.is_local else METRICS_INTERVAL_S


Reader = Callable[[CallLimitedSite, Query], Document]


@dataclass(slots=True)
class WatchedSite:
    """A site that the console watches. Thread-safe.

    `connect` connects to the site and its peers by name. `landed` is the folder into which a local site's jobs write.
    Both are set for an embedded cloud that isn't the user's default one.
    """

    name: SiteName
    connect: Connect = SiteName.connect
    landed: Path | None = None
    memory: SiteCache = field(default_factory=SiteCache)
    _current_round: CallLimitedSite | None = None
    _round_began_s: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    @property
    def is_local(self) -> bool:
        """Whether the site is in the embedded cloud (the local AWS emulator)."""
        return self.name.local_account is not None

    def open_round(self) -> CallLimitedSite:
        """Return the site with the current round's budget of calls. Raises a `BadConfiguration` or `CloudFailed`."""
        with self._lock:
            now_s = time.monotonic()
            if self._current_round is None or now_s - self._round_began_s > CACHED_S:
                memory = self.memory
                if self._current_round is None:
                    connection = self.connect(self.name)
                    connection.session.events.register("before-call", memory.count_call)
                else:
                    connection = self._current_round.connection
                if now_s - memory.stacks_read_at_s > (ABSENT_INTERVAL_S if memory.absent_stacks else STACKS_INTERVAL_S):
                    memory.stacks, memory.outputs, memory.absent_stacks, memory.stacks_read_at_s = None, {}, {}, now_s
                self._current_round = CallLimitedSite(
                    connection,
                    memory,
                    is_local=self.is_local,
                    calls=CALLS_PER_ROUND,
                    name=self.name,
                    landed=self.landed,
                    connect=self.connect,
                )
                self._round_began_s = now_s
            return self._current_round

    def disconnect(self) -> None:
        """Drop the connection, so that `open_round` connects again, for example with new credentials."""
        with self._lock:
            self._current_round = None
            self.memory.stacks_read_at_s = -math.inf
