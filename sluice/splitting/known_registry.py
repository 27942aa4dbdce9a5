"""The registry as the control function knows it: read where somebody else has written, and once in an invocation.

What an invocation has read or written goes on to its next step, and to the environment's next invocation, which asks
for the revision and, where that is the same, only for heartbeats and splitters: they are outside of any revision. Where
the version has changed, splitters are read after the write: only then is it known who may still route by the one before
(`sessions.rules`).
"""

from dataclasses import dataclass, field

from sluice.splitting.ports import RegistryStore
from sluice.splitting.sessions.state import Registry


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
