"""How Lambda reads a queue: the two profiles, and the event source mapping that each gives. No constructs here."""

from dataclasses import dataclass
from enum import StrEnum

from sluice.aws_rules import MAX_UNWINDOWED_BATCH, find_mapping_fault
from sluice.parameters.values import InconsistentParameter


class Profile(StrEnum):
    """Names what reading a queue is tuned for."""

    LATENCY = "latency"  # Lambda's own default: invoke at once, with at most ten messages
    THROUGHPUT = "throughput"  # wait for large batches, which take fewer requests and invocations a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How an event source mapping reads its queue. `window_s` is None for FIFO queues, which have no window.

    Raises `InconsistentParameter` if Lambda refuses it.
    """

    batch_size: int = MAX_UNWINDOWED_BATCH
    window_s: int | None = None
    max_concurrency: int | None = None

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
        return cls(batch_size=batch_size, window_s=None if fifo else window_s, max_concurrency=max_concurrency)
