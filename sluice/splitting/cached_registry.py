"""The registry as a splitter and as the control function know it.

A splitter's is never older than a second, and announced before it is routed by. The order is what makes it safe
(`sessions.rules`): announce the version read, read the version again, and route only when it is still the same. An
announcement holds for the lease: it is repeated before a batch could outlive it.

The control function's is read where somebody else has written, and once in an invocation. What an invocation has read
or written goes on to its next step, and to the environment's next invocation, which asks for the revision and, where
that is the same, only for heartbeats and splitters: they are outside of any revision. Where the version has changed,
splitters are read after the write: only then is it known who may still route by the one before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.splitting.filters.jq import Decide
from sluice.splitting.ports import NowMs, RegistryStore
from sluice.splitting.routing.router import Router, is_ready
from sluice.splitting.sessions.state import SPLITTER_LEASE_S, Registry
from sluice.splitting.splitter import Routes

CACHED_MS = 1_000
BATCH_MS = 20_000  # the function's time limit: no batch takes longer
ANNOUNCED_FOR_MS = SPLITTER_LEASE_S * 1_000 - BATCH_MS
MAX_READS = 10  # of a registry that changes with every look


class Unsettled(RuntimeError):
    """The registry changed each time it was read; the batch comes again."""


@dataclass(slots=True)
class CachedRegistry:
    """What a splitter's execution environment keeps. Not for threads."""

    store: RegistryStore
    splitter_id: str
    decide: Callable[[], Decide]
    now_ms: NowMs
    ready: Callable[[], None] = is_ready  # starts what `decide` needs
    _registry: Registry = field(default_factory=lambda: Registry(version=-1))
    _routes: dict[str, Routes] = field(default_factory=dict)
    _checked_at_ms: int = 0
    _announced_at_ms: int = 0

    def routes(self, queue_id: str) -> Routes:
        """Give the routes of a split queue, compiled at the first batch after a change. Raises `Unsettled`."""
        self._refresh()
        if queue_id not in self._routes:
            registry = self._registry
            shares = registry.shares_of(queue_id)
            queues = {share.session_id: registry.queue_of(share.session_id, queue_id) for share in shares}
            self._routes[queue_id] = Routes(
                router=Router.of(shares, version=registry.version, decide=self.decide(), ready=self.ready),
                queues={session_id: queue.name for session_id, queue in queues.items() if queue is not None},
            )
        return self._routes[queue_id]

    def main(self, queue_id: str, *, configured: str | None) -> str | None:
        """Name the queue that the deployed consumer reads as of the last `routes`, None while nothing is forwarded.

        Where it is re-pointed, or was by a deployment before this one, the registry says it; else the stacks do.
        """
        split = self._registry.splits.get(queue_id)
        if split is None or split.static or split.is_at_rest:
            return configured
        return split.main if split.forwards else None

    def _refresh(self) -> None:
        now_ms = self.now_ms()
        if now_ms - self._checked_at_ms < CACHED_MS and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
            return
        for _ in range(MAX_READS):
            now_ms, version = self.now_ms(), self.store.version()
            if version == self._registry.version and now_ms - self._announced_at_ms < ANNOUNCED_FOR_MS:
                self._checked_at_ms = now_ms
                return
            if version != self._registry.version:
                self._registry, _ = self.store.load()
                self._routes.clear()
                self._announced_at_ms = 0  # where announcing fails, the next batch begins with it
            self.store.announce(self.splitter_id, version=self._registry.version, at_ms=now_ms)
            self._announced_at_ms = now_ms
        raise Unsettled("the registry of sessions changes too fast to be read")


@dataclass(slots=True)
class KnownRegistry:
    """What an environment keeps. Not for threads. All of it raises `CallFailed`."""

    store: RegistryStore
    _registry: Registry = field(default_factory=Registry)
    _revision: int | None = None  # None: nothing is known
    _is_current: bool = False

    def begin(self) -> None:
        """Begin an invocation: others may have written."""
        self._is_current = False

    def load(self) -> Registry:
        """Give the registry as it was when this invocation last looked; it looks where it hasn't."""
        if not self._is_current:
            if self._revision is not None and self.store.revision() == self._revision:
                self._registry = self.store.refreshed(self._registry)
            else:
                self._registry, self._revision = self.store.load()
            self._is_current = True
        return self._registry

    def save(self, after: Registry) -> bool:
        """Write what differs from what was loaded; False where somebody else has written since: load again."""
        before, revision = self.load(), self._revision or 0
        self._is_current = False
        saved = self.store.save(before, after, revision=revision)
        if saved is None:
            return False
        self._registry, self._revision = after, saved
        self._is_current = after.version == before.version
        return True
