"""How receiving goes, queue by queue: whether it does at all, and for how long it hasn't. Pure: times are monotonic."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluice_spark.errors import NothingReceived, QueueError

QUIET_S = 5.0  # without a message after which a source is idle
State = Literal["receiving", "idle", "failing"]


@dataclass(slots=True)
class _Queue:
    good_at: float
    failing_since: float | None = None
    reason: str = ""


@dataclass(slots=True)
class ReceiveHealth:
    """Of some queues, from the time `began`. Failing: some queue's receives fail, and none has worked since."""

    queue_urls: Sequence[str]
    began: float
    failed: int = 0  # receives
    messages_at: float | None = None  # when the last came
    _queues: dict[str, _Queue] = field(init=False)

    def __post_init__(self) -> None:
        self._queues = {queue_url: _Queue(self.began) for queue_url in self.queue_urls}

    def worked(self, queue_url: str, now: float, messages: int) -> None:
        """Note an answer, of no messages or some."""
        queue = self._queues[queue_url]
        queue.good_at, queue.failing_since = now, None
        if messages:
            self.messages_at = now

    def broke(self, queue_url: str, now: float, error: QueueError) -> None:
        """Note a receive that failed by what may pass."""
        self.failed += 1
        queue = self._queues[queue_url]
        queue.reason = str(error)
        if queue.failing_since is None:
            queue.failing_since = now

    def state(self, now: float) -> State:
        """Say what it is doing."""
        if self._worst is not None:
            return "failing"
        return "receiving" if self.messages_at is not None and now - self.messages_at < QUIET_S else "idle"

    @property
    def reason(self) -> str:
        """Why the queue that has failed for longest does; empty where none does."""
        return worst.reason if (worst := self._worst) is not None else ""

    def since_good_s(self, now: float) -> float:
        """Give the time since the last good receive, of the queue whose is longest ago."""
        return max((now - queue.good_at for queue in self._queues.values()), default=0.0)

    def check(self, now: float, patience_s: float | None) -> None:
        """Raise NothingReceived for a queue that has failed for so long, without one good receive. None: never."""
        for queue_url, queue in self._queues.items():
            if patience_s is None or queue.failing_since is None or now - queue.failing_since < patience_s:
                continue
            raise NothingReceived(queue_url, now - queue.failing_since, queue.reason)

    @property
    def _worst(self) -> _Queue | None:
        failing = [queue for queue in self._queues.values() if queue.failing_since is not None]
        return min(failing, key=lambda queue: queue.failing_since or 0.0, default=None)
