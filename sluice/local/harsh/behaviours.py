"""Settings of the embedded cloud's harsh mode, passed to the cloud's process as text."""

import json
import re
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviours:
    """All imitated behaviours. Delays are in seconds, and multiplied by `scale`. Chances are per call or message.

    Equal seeds and equal orders of calls give equal faults.
    """

    seed: int = 0
    scale: float = 1.0  # factor for all delays

    queue_appears_s: float = 1.0
    queue_appears_late: float = 1.0  # chance that a new queue is invisible for `queue_appears_s`
    queues_there_at_once: str = ""  # pattern of the names of queues that are visible at once
    queue_name_taken_s: float = 60.0
    deleted_queue_takes: float = 0.1  # chance that a deleted queue accepts a message, which is lost
    mapping_changes_s: float = 10.0
    access_changes_s: float = 10.0  # delay until changed keys, roles and policies take effect
    queue_policy_acts_s: float = 60.0
    duplicated: float = 0.02  # chance that a received message is delivered again
    duplicate_within_s: float = 30.0
    reordered: float = 0.5  # chance that a receive returns messages in random order
    short_poll_misses: float = 0.3  # chance that a short poll misses a waiting message
    throttled: float = 0.01  # chance that SQS, DynamoDB, Lambda or IAM refuses a call
    entry_fails: float = 0.01  # chance that one entry of a batch fails
    fifo_entry_fails: float = 0.01  # chance that one entry of a batch for a FIFO queue fails
    expired_item_stays_s: float = 172_800.0
    stale_reads: float = 0.3  # chance that an eventually consistent read misses changes of the last `stale_s`
    stale_s: float = 1.0
    parameter_reads_per_s: int = 40  # maximum calls per second that read parameters, per account and region
    frozen: bool = True  # whether execution environments are frozen between invocations
    account_concurrency: int = 1_000  # maximum concurrent executions of an account in a region
    concurrency_added_per_s: float = 5.0  # concurrent invocations that a busy mapping gains per second
    in_flight: int = 120_000  # maximum messages in flight of a queue
    limits: bool = True  # whether AWS's limits on names, policies, messages and variables are enforced

    def __post_init__(self) -> None:
        """Raise ValueError for a negative delay or a chance outside 0 to 1, `re.error` for a malformed pattern."""
        re.compile(self.queues_there_at_once)
        for name, value in asdict(self).items():
            if name.endswith("_s") or name in {"scale", "account_concurrency", "in_flight"}:
                fits = value >= 0
            else:
                fits = name == "seed" or isinstance(value, bool | str) or 0 <= value <= 1
            if not fits:
                raise ValueError(f"{name} can't be {value}")

    def scale_delay(self, delay_s: float) -> float:
        """Return a delay multiplied by `scale`."""
        return delay_s * self.scale

    def text(self) -> str:
        """Serialize the settings as text, which `parse` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Behaviours":
        """Parse settings from text that method `text` wrote."""
        return cls(**json.loads(text))
