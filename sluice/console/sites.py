"""The sites that are watched: each asked with the caller's credentials, once a second for all that pages want of it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from sluice.cli.site_names import SiteName
from sluice.cli.site_status import AskedSite

CACHED_S = 1.0
OUTPUTS_CACHED_S = 60.0  # what a stack says changes with a deployment
Document = Mapping[str, Any]
Query = Mapping[str, str]
Reader = Callable[[AskedSite, Query], Document]


class KnownSite(AskedSite):
    """A site as it is asked in one second: outputs of its stacks are those of the last minute."""

    outputs_of: dict[str, Mapping[str, str]]

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Give the outputs of a stack, by its name without the stage. Raises `NotDeployed`, what `all_outputs` does."""
        if stack not in self.outputs_of:
            self.outputs_of[stack] = super().outputs(stack)
        return self.outputs_of[stack]


@dataclass(slots=True)
class WatchedSite:
    """One site. Safe for threads."""

    name: SiteName
    _asked: KnownSite | None = None
    _asked_at_s: float = 0.0
    _outputs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _outputs_at_s: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    @property
    def is_local(self) -> bool:
        """Whether it is one of the embedded cloud."""
        return self.name.local_account is not None

    def now(self) -> KnownSite:
        """Give the site as it is asked in this second. Raises a `BadConfiguration` or `CloudFailed`."""
        with self._lock:
            now_s = time.monotonic()
            if self._asked is None or now_s - self._asked_at_s > CACHED_S:
                connection = self._asked.connection if self._asked else self.name.connect()
                if now_s - self._outputs_at_s > OUTPUTS_CACHED_S:
                    self._outputs, self._outputs_at_s = {}, now_s
                self._asked = KnownSite(connection, is_local=self.is_local)
                self._asked.outputs_of = self._outputs
                self._asked_at_s = now_s
            return self._asked

    def forget(self) -> None:
        """Connect anew the next time: the embedded cloud may be another one by then, or credentials be new."""
        with self._lock:
            self._asked, self._outputs, self._outputs_at_s = None, {}, 0.0
