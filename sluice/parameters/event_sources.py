"""How Lambda reads a queue: the profiles, and the event source mapping for each profile. No constructs here."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from sluice.aws_rules import CALLS_PER_POLLER, MAX_UNWINDOWED_BATCH, MIN_POLLERS, find_mapping_fault
from sluice.parameters.values import InconsistentParameter


class Profile(StrEnum):
    """The goal for which the reading of a queue is tuned."""

    LATENCY = "latency"  # Lambda's default: invoke at once, with at most ten messages.
    THROUGHPUT = "throughput"  # Wait for large batches, which take fewer requests and invocations per message.
    # Invoke at once, by dedicated pollers, which AWS charges by the hour.
    # A poller polls at most ten times a second, so under load batches fill without a window.
    PROVISIONED = "provisioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How an event source mapping reads its queue. `window_s` is None for FIFO queues, which have no window.

    `max_pollers` limits the dedicated pollers; None means none. Raises `InconsistentParameter` if Lambda refuses it.
    """

    batch_size: int = MAX_UNWINDOWED_BATCH
    window_s: int | None = None
    max_concurrency: int | None = None
    max_pollers: int | None = None

    def __post_init__(self) -> None:
        """Check the combination of values."""
        properties = {"BatchSize": self.batch_size, "MaximumBatchingWindowInSeconds": self.window_s}
        fault = find_mapping_fault(properties, fifo=self.window_s is None)
        if fault is not None:
            raise InconsistentParameter("batching_window_s", fault)

    @classmethod
    def from_profile(
        cls, profile: Profile, *, fifo: bool, batch_size: int, window_s: int, max_concurrency: int
    ) -> "Reading":
        """Build the reading that a profile gives a queue, from a section's parameters. FIFO batches are small."""
        if fifo or profile is not Profile.THROUGHPUT:
            batch_size, window_s = min(batch_size, MAX_UNWINDOWED_BATCH), 0
        if profile is Profile.PROVISIONED and not fifo:
            pollers = max(MIN_POLLERS, ceil(max_concurrency / CALLS_PER_POLLER))
            return cls(batch_size=batch_size, window_s=window_s, max_pollers=pollers)
        return cls(batch_size=batch_size, window_s=None if fifo else window_s, max_concurrency=max_concurrency)
