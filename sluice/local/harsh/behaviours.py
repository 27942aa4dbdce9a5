"""Settings of a harsh cloud, passed to its process as text."""

import json
import re
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviours:
    """Every behaviour, at AWS's own measure. Delays are in seconds, before `scale`; chances are of one call or message.

    With the same seed and the same order of calls the same calls are hit.
    """

    seed: int = 0
    scale: float = 1.0  # of all delays

    queue_appears_s: float = 1.0
    queue_appears_late: float = 1.0  # chance that a new queue isn't there at first
    queues_there_at_once: str = ""  # pattern of the names of those that are all the same
    queue_name_taken_s: float = 60.0
    deleted_queue_takes: float = 0.1  # chance that a deleted queue takes a message, which is lost
    mapping_changes_s: float = 10.0
    access_changes_s: float = 10.0  # of keys, roles, and roles' and users' policies
    queue_policy_acts_s: float = 60.0
    duplicated: float = 0.02  # chance of a received message to come again
    duplicate_within_s: float = 30.0
    reordered: float = 0.5  # chance of a receive to take of those that wait in any order
    short_poll_misses: float = 0.3  # chance of a message that waits
    throttled: float = 0.01  # chance of a call of SQS, DynamoDB, Lambda or IAM
    entry_fails: float = 0.01  # chance of an entry of a batch
    fifo_entry_fails: float = 0.01  # the same, of a batch for a FIFO queue
    expired_item_stays_s: float = 172_800.0
    frozen: bool = True  # functions, between invocations
    limits: bool = True  # of names, policies, attributes, messages and environments

    def __post_init__(self) -> None:
        """Refuse what is no chance and no delay."""
        re.compile(self.queues_there_at_once)
        for name, value in asdict(self).items():
            if name.endswith("_s") or name == "scale":
                fits = value >= 0
            else:
                fits = name == "seed" or isinstance(value, bool | str) or 0 <= value <= 1
            if not fits:
                raise ValueError(f"{name} can't be {value}")

    def scale_delay(self, delay_s: float) -> float:
        """Give how long a delay takes in this cloud."""
        return delay_s * self.scale

    def text(self) -> str:
        """Write it as `parse` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Behaviours":
        """Read what `text` has written."""
        return cls(**json.loads(text))
