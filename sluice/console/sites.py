"""The sites that are watched: each asked with the caller's credentials, once a second for all that pages want of it.

A second in which a site is asked is a *round*. Each makes at most `CALLS` calls to AWS, the first one too: functions
that parts are asked through come first, and of what is looked at in turn, as queues are, those that wait longest. What
a round has no call left for is known some rounds later.
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
from sluice.operator.pipelines import AskedPipeline
from sluice.operator.site_names import SiteName
from sluice.operator.site_status import AskedSite
from sluice.stages import staged

T = TypeVar("T")
CACHED_S = 1.0
HERE = SiteName(None)  # where the caller's own settings lead
CALLS = 10  # of a round to AWS
STACKS_EVERY_S = 60.0  # what a stack says changes with a deployment
ABSENT_EVERY_S = 10.0  # who looks at what isn't deployed may be about to deploy it
DEPTH_EVERY_S = 4.0
LEFT_BY_DEPTHS = 3  # calls of a round: queues are many, and would take all
WANTED_S = 15.0  # what nobody has asked for since has no turn
FORGOTTEN_S = 600.0  # and then isn't known any more: queues and sessions come and go
METRICS_EVERY_S = 60.0  # CloudWatch has a value a minute, and takes money for each that it gives
LOCAL_METRICS_EVERY_S = 2.0
LAG_EVERY_S = 60.0
UNKNOWN = -1  # of a depth that wasn't looked at yet
Document = Mapping[str, Any]
Query = Mapping[str, str]


@dataclass(slots=True)
class Kept:
    """What something said last, and when; or how it failed."""

    at_s: float
    value: Any = None
    error: SluiceError | None = None


@dataclass(slots=True)
class SiteMemory:
    """What is known of a site from round to round, and what pages keep for it. Safe for threads."""

    kept: dict[object, Kept] = field(default_factory=dict)
    stacks: Mapping[str, StackView] | None = None
    outputs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    absent: dict[str, SluiceError] = field(default_factory=dict)  # stacks that aren't deployed
    stacks_at_s: float = -math.inf
    wanted: dict[str, dict[object, float]] = field(default_factory=dict)  # of each kind in turn, when it was wanted
    calls: int = 0  # to AWS, since the beginning
    own: dict[str, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    now_s: Callable[[], float] = time.monotonic

    def count(self, **_: object) -> None:
        """Count a call that is about to be made, as botocore's event says it; that it is tried again is none."""
        with self.lock:
            self.calls += 1

    def of(self, name: str, make: Callable[[], T]) -> T:
        """Give what a page keeps for the site, made once, without a call to AWS: that would be counted meanwhile."""
        with self.lock:
            if name not in self.own:
                self.own[name] = make()
            found: T = self.own[name]
            return found


Reach = Callable[[SiteName], Connection]


class KnownSite(AskedSite):
    """A site as it is asked in one round."""

    def __init__(
        self,
        connection: Connection,
        memory: SiteMemory,
        *,
        is_local: bool,
        calls: int,
        name: SiteName = HERE,
        landed: Path | None = None,
        reach: "Reach" = SiteName.connect,
    ) -> None:
        super().__init__(connection, is_local=is_local)
        self.memory, self.name, self.reach, self._landed = memory, name, reach, landed
        self._left = calls
        self._aside = 0
        self._spending = Lock()

    def spend(self, calls: int, *, leaving: int = 0) -> bool:
        """Take so many calls of the round's; False where it has no more, or wouldn't have those that are left."""
        with self._spending:
            if calls and self._left - leaving < calls:
                return False
            self._left -= calls
            return True

    def set_aside(self, functions: int) -> None:
        """Keep calls of the round for functions that will be asked, whatever else is asked for before."""
        with self._spending:
            self._left -= functions
            self._aside += functions

    def _spend_on_function(self) -> None:
        with self._spending:
            if self._aside:
                self._aside -= 1
            else:
                self._left -= 1  # it is asked all the same

    def kept_in_turn(
        self, kind: str, name: object, task: Callable[[], T], *, every_s: float, leaving: int = 0
    ) -> T | None:
        """Give the same of one of several that are alike: those that wait longest are done anew first."""
        now_s = self.memory.now_s()
        with self.memory.lock:
            wanted = self.memory.wanted.setdefault(kind, {})
            wanted[name] = now_s
            for each in [each for each, at_s in wanted.items() if now_s - at_s > FORGOTTEN_S]:
                del wanted[each]
                self.memory.kept.pop((kind, each), None)
            mine_s = self._done_at_s(kind, name)
            others = (each for each, at_s in wanted.items() if now_s - at_s <= WANTED_S)
            before = sum(self._done_at_s(kind, each) < mine_s for each in others)
        has_turn = before < self._left - leaving
        return self.kept((kind, name), task, every_s=every_s if has_turn else math.inf, leaving=leaving)

    def _done_at_s(self, kind: str, name: object) -> float:
        known = self.memory.kept.get((kind, name))
        return -math.inf if known is None else known.at_s

    def kept(
        self, name: object, task: Callable[[], T], *, every_s: float, calls: int = 1, leaving: int = 0
    ) -> T | None:
        """Give what a task says, which is done anew where that is older and the round has calls left for it.

        None where it was never done. Raises what it raised the last time.
        """
        now_s = self.memory.now_s()
        known = self.memory.kept.get(name)
        if (known is None or now_s - known.at_s >= every_s) and self.spend(calls, leaving=leaving):
            try:
                known = Kept(now_s, task())
            except SluiceError as error:
                known = Kept(now_s, error=error)
            self.memory.kept[name] = known
        if known is None:
            return None
        if known.error is not None:
            raise known.error.with_traceback(None)  # which would keep who was told before, with all that they had
        found: T = known.value
        return found

    # What the parts of a status ask for

    def stacks(self) -> Mapping[str, StackView]:
        """Give all stacks of the account and region, by their names. Raises what `all_stacks` does."""
        if self.memory.stacks is None:
            self.once("call for stacks", partial(self.spend, 1)).result()
            self.memory.stacks = super().stacks()
        return self.memory.stacks

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Give the outputs of a stack, by its name without the stage. Raises `NotDeployed`, what `all_stacks` does."""
        known, absent = self.memory.outputs, self.memory.absent
        if stack in absent:
            raise absent[stack].with_traceback(None)
        if stack not in known:
            if staged(stack, self.connection.stage) not in self.stacks():
                self.once(f"call for {stack}", partial(self.spend, 1)).result()  # for what a construct has stored
            try:
                known[stack] = super().outputs(stack)
            except NotDeployed as error:
                absent[stack] = error
                raise
        return known[stack]

    def client(self, where: tuple[str, str]) -> ControlClient:
        """Find a function that is asked, at once and for one call. Raises `NotUsable`."""
        found = super().client(where)
        self._spend_on_function()
        return found

    def pipeline(self) -> AskedPipeline:
        """Find the pipeline that is asked, at once and for one call. Raises `NotUsable`."""
        found = super().pipeline()
        if not self.is_local:
            self._spend_on_function()
        return found

    def jobs_folder(self) -> Path:
        """Say where a site of the embedded cloud keeps what its jobs do: it is asked for its account once."""
        if self._landed is not None:
            return self._landed
        known = self.memory.of("jobs folder", list[Path])
        if not known:
            self.spend(1)
            known.append(super().jobs_folder())
        return known[0]

    def depth(self, url: str) -> Future[QueueDepth]:
        """Ask what a queue holds in its turn; `UNKNOWN` where that hasn't come yet."""
        return self.once(url, partial(self._depth, url))

    def _depth(self, url: str) -> QueueDepth:
        ask = partial(super().depth_now, url)
        with suppress(SluiceError):
            if url in self._seen_by_sweeper():
                return self.rendezvous().result().held[url]
        found = self.kept_in_turn("depth", url, ask, every_s=DEPTH_EVERY_S, leaving=LEFT_BY_DEPTHS)
        return QueueDepth(visible=UNKNOWN, in_flight=UNKNOWN) if found is None else found

    def held(self, urls: Iterable[str]) -> list[dict[str, Any]]:
        """Say of each queue what it holds; null where that isn't known yet. Raises `CallFailed`."""
        return [
            {name: None if value == UNKNOWN else value for name, value in each.items()} for each in super().held(urls)
        ]

    def lags(self, queues: Mapping[str, str | None]) -> Mapping[str, Mapping[str, Any]]:
        """Say how late routes are, as of the last minute. Raises `CallFailed`."""
        return self.kept("lags", lambda: super(KnownSite, self).lags(queues), every_s=LAG_EVERY_S) or {}

    @property
    def metrics_every_s(self) -> float:
        """How old metrics may be."""
        return LOCAL_METRICS_EVERY_S if self.is_local else METRICS_EVERY_S


Reader = Callable[[KnownSite, Query], Document]


@dataclass(slots=True)
class WatchedSite:
    """One site. Safe for threads.

    `reach` connects to it, and to its peers, by their names; `landed` is the folder in which the jobs of a local site
    land. Both are for an embedded cloud that isn't the user's.
    """

    name: SiteName
    reach: "Reach" = SiteName.connect
    landed: Path | None = None
    memory: SiteMemory = field(default_factory=SiteMemory)
    _asked: KnownSite | None = None
    _asked_at_s: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    @property
    def is_local(self) -> bool:
        """Whether it is one of the embedded cloud."""
        return self.name.local_account is not None

    def now(self) -> KnownSite:
        """Give the site as it is asked in this round. Raises a `BadConfiguration` or `CloudFailed`."""
        with self._lock:
            now_s = time.monotonic()
            if self._asked is None or now_s - self._asked_at_s > CACHED_S:
                memory = self.memory
                connection = self._connect() if self._asked is None else self._asked.connection
                if now_s - memory.stacks_at_s > (ABSENT_EVERY_S if memory.absent else STACKS_EVERY_S):
                    memory.stacks, memory.outputs, memory.absent, memory.stacks_at_s = None, {}, {}, now_s
                self._asked = KnownSite(
                    connection,
                    memory,
                    is_local=self.is_local,
                    calls=CALLS,
                    name=self.name,
                    landed=self.landed,
                    reach=self.reach,
                )
                self._asked_at_s = now_s
            return self._asked

    def forget(self) -> None:
        """Connect anew the next time: the embedded cloud may be another one by then, or credentials be new."""
        with self._lock:
            self._asked = None
            self.memory.stacks_at_s = -math.inf

    def _connect(self) -> Connection:
        connection = self.reach(self.name)
        connection.session.events.register("before-call", self.memory.count)
        return connection
