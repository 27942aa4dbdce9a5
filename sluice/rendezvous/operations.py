"""Operations of the sweeper function for operators, and their results. Pure. A scheduled sweep is not an operation."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation, QueueDepth
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS, PATIENCE_MS, TIME_OUT_REPLY_MS, Pool

SWEPT_AFTER_S = ANSWER_QUEUE_AGE_MS // 1000
LEAST_S = (PATIENCE_MS + TIME_OUT_REPLY_MS) // 1000 + 1  # After this time every client has its answer or has given up.
MAX_QUEUES = 10


class SweepView(Struct, frozen=True, kw_only=True):
    """The result of a sweep: deleted queues, `failed` deletions, and offers that ended as `denied` or timed out.

    Few offers over HTTP are counted here: the client function stores their end, unless its call fails.
    """

    answer_queues: int = 0
    mailboxes: int = 0
    failed: int = 0
    denied: int = 0
    timed_out: int = 0


class SweepAnswers(Operation[SweepView], frozen=True, kw_only=True, tag="sweep"):
    """Delete answer queues of at least this age, and end their offers.

    Use a lower age than the scheduled sweep's only if no client still reads its answer queue.
    """

    changes = True
    older_than_s: Annotated[int, Meta(ge=LEAST_S, le=SWEPT_AFTER_S)] = SWEPT_AFTER_S


class RendezvousView(Struct, frozen=True, kw_only=True):
    """The numbers of waiting proxies by pool, of recent offers by state, and of messages by queue URL."""

    waiting: Mapping[Pool, int]
    recent_offers: Mapping[str, int]
    depths: Mapping[str, QueueDepth]


class ShowRendezvous(Operation[RendezvousView], frozen=True, kw_only=True, tag="show"):
    """Show the state of the rendezvous, and the number of messages in these queues, such as the offers queue."""

    only_reads = True
    queues: Annotated[tuple[str, ...], Meta(max_length=MAX_QUEUES)] = ()


SweeperOperation = SweepAnswers | ShowRendezvous
