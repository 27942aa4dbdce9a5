"""What a receiver is to receive, and how much of it at once. Pure."""

from dataclasses import dataclass, field

from sluice_spark.log.planning import ROWS_PER_TASK
from sluice_spark.options import BUFFER_DEFAULT_BYTES, PATIENCE_DEFAULT_S
from sluice_spark.source.rate import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the receiver's memory and its lead over Spark."""

    segment_messages: int = ROWS_PER_TASK
    segment_bytes: int = 16 * 2**20
    segment_age_s: float = 0.25
    buffer_bytes: int = BUFFER_DEFAULT_BYTES  # in memory: received and not yet durable, or on its way
    undeleted: int = 100_000  # durable, not yet deleted
    backlog_messages: int = 1_000_000  # durable, not yet in a batch
    backlog_bytes: int = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What to receive and how."""

    queue_urls: tuple[str, ...]
    connections: int = 64
    wait_s: int = 20
    visibility_s: int | None = None
    delete: bool = True
    after_commit: bool = False  # deleted only once `Receiver.committed` says so; kept invisible until then
    until_empty: bool = False  # a bounded read: ends when every queue answered a long poll with nothing
    rate_limit: Limit | None = None  # messages/s, of all queues together
    enough_messages: int | None = None  # a bounded read: ends also here, or a little beyond
    enough_bytes: int | None = None
    patience_s: float | None = PATIENCE_DEFAULT_S  # with receives that fail
    limits: Limits = field(default_factory=Limits)
