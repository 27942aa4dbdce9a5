"""How Lambda reads a queue: the profiles, and the event source mapping that each gives. No constructs here."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from sluice.aws_rules import CALLS_PER_POLLER, MAX_UNWINDOWED_BATCH, MIN_POLLERS, find_mapping_fault
from sluice.parameters.values import InconsistentParameter


class Profile(StrEnum):
    """Names what reading a queue is tuned for."""

    LATENCY = "latency"  # Lambda's own default: invoke at once, with at most ten messages
    THROUGHPUT = "throughput"  # wait for large batches, which take fewer requests and invocations a message
    # Invoke at once, by dedicated pollers, which are charged by the hour. Each polls ten times a second at most, so
    # batches fill under load without a window.
    PROVISIONED = "provisioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How an event source mapping reads its queue. `window_s` is None for FIFO queues, which have no window.

    `max_pollers` is the most dedicated pollers, None without any. Raises `InconsistentParameter` if Lambda refuses it.
    """

    batch_size: int = MAX_UNWINDOWED_BATCH
    window_s: int | None = None
    max_concurrency: int | None = None
    max_pollers: int | None = None

    def __post_init__(self) -> None:
        """Check it."""
        properties = {"BatchSize": self.batch_size, "MaximumBatchingWindowInSeconds": self.window_s}
        fault = find_mapping_fault(properties, fifo=self.window_s is None)
        if fault is not None:
            raise InconsistentParameter("batching_window_s", fault)

    @classmethod
    def of_profile(
        cls, profile: Profile, *, fifo: bool, batch_size: int, window_s: int, max_concurrency: int
    ) -> "Reading":
        """Build what a profile means for a queue, from a section's parameters. FIFO queues have no large batches."""
        if fifo or profile is not Profile.THROUGHPUT:
            batch_size, window_s = min(batch_size, MAX_UNWINDOWED_BATCH), 0
        if profile is Profile.PROVISIONED and not fifo:
            pollers = max(MIN_POLLERS, ceil(max_concurrency / CALLS_PER_POLLER))
            return cls(batch_size=batch_size, window_s=window_s, max_pollers=pollers)
        return cls(batch_size=batch_size, window_s=None if fifo else window_s, max_concurrency=max_concurrency)
