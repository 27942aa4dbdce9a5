"""Tracks whether each queue's receives succeed, and how long they have failed. Pure: times are monotonic seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluice_spark.errors import NothingReceived, QueueError

QUIET_S = 5.0  # seconds without messages after which a source is idle
State = Literal["receiving", "idle", "failing"]


@dataclass(slots=True)
class _QueueHealth:
    succeeded_at: float
    failing_since: float | None = None
    reason: str = ""


@dataclass(slots=True)
class ReceiveHealth:
    """Receive health of queues since `began`. A queue is failing after a failed receive, until a receive succeeds."""

    queue_urls: Sequence[str]
    began: float
    failed_receives: int = 0  # number of failed receives
    last_message_at: float | None = None  # when the last message was received
    _queues: dict[str, _QueueHealth] = field(init=False)

    def __post_init__(self) -> None:
        self._queues = {queue_url: _QueueHealth(self.began) for queue_url in self.queue_urls}

    def record_success(self, queue_url: str, now: float, messages: int) -> None:
        """Record a successful receive, with or without messages."""
        queue = self._queues[queue_url]
        queue.succeeded_at, queue.failing_since = now, None
        if messages:
            self.last_message_at = now

    def record_failure(self, queue_url: str, now: float, error: QueueError) -> None:
        """Record a receive that failed with a transient error."""
        self.failed_receives += 1
        queue = self._queues[queue_url]
        queue.reason = str(error)
        if queue.failing_since is None:
            queue.failing_since = now

    def state(self, now: float) -> State:
        """Return the source's state: failing if any queue is failing."""
        if self._longest_failing is not None:
            return "failing"
        return "receiving" if self.last_message_at is not None and now - self.last_message_at < QUIET_S else "idle"

    @property
    def reason(self) -> str:
        """The error of the queue that has failed for longest; empty if none is failing."""
        return worst.reason if (worst := self._longest_failing) is not None else ""

    def seconds_since_success(self, now: float) -> float:
        """Return the longest time, in seconds, that a queue has been without a successful receive."""
        return max((now - queue.succeeded_at for queue in self._queues.values()), default=0.0)

    def check(self, now: float, failure_timeout_s: float | None) -> None:
        """Raise NothingReceived if a queue has been failing for `failure_timeout_s`. None disables the check."""
        for queue_url, queue in self._queues.items():
            if failure_timeout_s is None or queue.failing_since is None:
                continue
            if (failing_s := now - queue.failing_since) >= failure_timeout_s:
                raise NothingReceived(queue_url, failing_s, queue.reason)

    @property
    def _longest_failing(self) -> _QueueHealth | None:
        failing = [queue for queue in self._queues.values() if queue.failing_since is not None]
        return min(failing, key=lambda queue: queue.failing_since or 0.0, default=None)
