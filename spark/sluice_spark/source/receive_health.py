"""Tracks whether each queue's receives succeed, and how long they have failed. Pure: times are monotonic seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluice_spark.errors import NothingReceived, QueueError

QUIET_S = 5.0  # seconds without messages after which a source is idle
State = Literal["receiving", "idle", "failing"]


@dataclass(slots=True)
class _Queue:
    good_at: float
    failing_since: float | None = None
    reason: str = ""


@dataclass(slots=True)
class ReceiveHealth:
    """Receive health of queues since `began`. A queue is failing after a failed receive, until a receive succeeds."""

    queue_urls: Sequence[str]
    began: float
    failed: int = 0  # number of failed receives
    messages_at: float | None = None  # when the last message was received
    _queues: dict[str, _Queue] = field(init=False)

    def __post_init__(self) -> None:
        self._queues = {queue_url: _Queue(self.began) for queue_url in self.queue_urls}

    def record_success(self, queue_url: str, now: float, messages: int) -> None:
        """Record a successful receive, with or without messages."""
        queue = self._queues[queue_url]
        queue.good_at, queue.failing_since = now, None
        if messages:
            self.messages_at = now

    def record_failure(self, queue_url: str, now: float, error: QueueError) -> None:
        """Record a receive that failed with a transient error."""
        self.failed += 1
        queue = self._queues[queue_url]
        queue.reason = str(error)
        if queue.failing_since is None:
            queue.failing_since = now

    def state(self, now: float) -> State:
        """Return the source's state: failing if any queue is failing."""
        if self._worst is not None:
            return "failing"
        return "receiving" if self.messages_at is not None and now - self.messages_at < QUIET_S else "idle"

    @property
    def reason(self) -> str:
        """The error of the queue that has failed for longest; empty if none is failing."""
        return worst.reason if (worst := self._worst) is not None else ""

    def since_good_s(self, now: float) -> float:
        """Return the longest time, in seconds, that a queue has been without a successful receive."""
        return max((now - queue.good_at for queue in self._queues.values()), default=0.0)

    def check(self, now: float, failure_timeout_s: float | None) -> None:
        """Raise NothingReceived if a queue has been failing for `failure_timeout_s`. None disables the check."""
        for queue_url, queue in self._queues.items():
            if failure_timeout_s is None or queue.failing_since is None:
                continue
            if (failing_s := now - queue.failing_since) >= failure_timeout_s:
                raise NothingReceived(queue_url, failing_s, queue.reason)

    @property
    def _worst(self) -> _Queue | None:
        failing = [queue for queue in self._queues.values() if queue.failing_since is not None]
        return min(failing, key=lambda queue: queue.failing_since or 0.0, default=None)
