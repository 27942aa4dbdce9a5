"""The sites that are watched: each asked with the caller's credentials, once a second for all that pages want of it.

A second in which a site is asked is a *round*. The first round asks for whatever is wanted, as a command does; each
later one makes at most `CALLS` calls to AWS: what pages follow comes first, and of what is looked at in turn, as queues
are, those that wait longest.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.cli.site_names import SiteName
from sluice.cli.site_status import AskedSite
from sluice.console.history import History
from sluice.errors import SluiceError

if TYPE_CHECKING:  # boto3 takes longer than all of --help
    from sluice.aws.operator.connections import Connection
    from sluice.aws.operator.control_client import ControlClient
    from sluice.rendezvous.operations import QueueDepth

T = TypeVar("T")
CACHED_S = 1.0
HERE = SiteName(None)  # where the caller's own settings lead
CALLS = 10  # of a round to AWS
OUTPUTS_EVERY_S = 60.0  # what a stack says changes with a deployment
DEPTH_EVERY_S = 4.0
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

    history: History = field(default_factory=History.at)
    kept: dict[object, Kept] = field(default_factory=dict)
    outputs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    outputs_at_s: float = 0.0
    depths: set[str] = field(default_factory=set)
    rounds: int = 0
    calls: int = 0  # to AWS, since the beginning
    own: dict[str, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

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


class KnownSite(AskedSite):
    """A site as it is asked in one round."""

    def __init__(
        self,
        connection: "Connection",
        memory: SiteMemory,
        *,
        is_local: bool,
        calls: float,
        name: SiteName = HERE,
    ) -> None:
        super().__init__(connection, is_local=is_local)
        self.memory, self.name = memory, name
        self._left = calls
        self._spending = Lock()

    def spend(self, calls: int) -> bool:
        """Take so many calls of the round's; False where it has no more."""
        with self._spending:
            if self._left < calls:
                return False
            self._left -= calls
            return True

    def kept(self, name: object, task: Callable[[], T], *, every_s: float, calls: int = 1) -> T | None:
        """Give what a task says, which is done anew where that is older and the round has calls left for it.

        None where it was never done. Raises what it raised the last time.
        """
        now_s = time.monotonic()
        known = self.memory.kept.get(name)
        if (known is None or now_s - known.at_s >= every_s) and self.spend(calls):
            try:
                known = Kept(now_s, task())
            except SluiceError as error:
                known = Kept(now_s, error=error)
            self.memory.kept[name] = known
        if known is None:
            return None
        if known.error is not None:
            raise known.error
        found: T = known.value
        return found

    # What the parts of a status ask for

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Give the outputs of a stack, by its name without the stage. Raises `NotDeployed`, what `all_outputs` does."""
        known = self.memory.outputs
        if stack not in known:
            if not known:
                self.spend(1)
            known[stack] = super().outputs(stack)
        return known[stack]

    def client(self, where: tuple[str, str]) -> "ControlClient":
        """Find a function that is asked, at once and for one call. Raises `NotUsable`."""
        found = super().client(where)
        self.spend(1)
        return found

    def depth(self, url: str) -> "Future[QueueDepth]":
        """Ask what a queue holds in its turn; `UNKNOWN` where that hasn't come yet."""
        self.memory.depths.add(url)
        return self.once(url, partial(self._depth, url))

    def _depth(self, url: str) -> "QueueDepth":
        from sluice.rendezvous.operations import QueueDepth  # noqa: PLC0415 - boto3 takes longer than all of --help

        # So long that each has had its turn before the first has it again.
        every_s = max(DEPTH_EVERY_S, len(self.memory.depths) / CALLS * DEPTH_EVERY_S)
        found = self.kept(("depth", url), lambda: super(KnownSite, self).depth_now(url), every_s=every_s)
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
    """One site, by its name, or as it is `connected` where its name doesn't lead to it. Safe for threads."""

    name: SiteName
    connected: "Connection | None" = None
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
                if now_s - memory.outputs_at_s > OUTPUTS_EVERY_S:
                    memory.outputs, memory.outputs_at_s = {}, now_s
                calls = CALLS if memory.rounds else float("inf")
                memory.rounds += 1
                self._asked = KnownSite(connection, memory, is_local=self.is_local, calls=calls, name=self.name)
                self._asked_at_s = now_s
            return self._asked

    def forget(self) -> None:
        """Connect anew the next time: the embedded cloud may be another one by then, or credentials be new."""
        with self._lock:
            self._asked = None
            self.memory.outputs_at_s = 0.0

    def _connect(self) -> "Connection":
        connection = self.connected or self.name.connect()
        connection.session.events.register("before-call", self.memory.count)
        return connection
