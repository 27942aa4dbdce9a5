"""Requests of operators to the sweeper function, and its responses. Pure. The schedule sends no request."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from sluice.codec import Struct
from sluice.operations import Operation, QueueDepth
from sluice.rendezvous.protocol.matching import ANSWER_QUEUE_AGE_MS, HEARS_MS, PATIENCE_MS, Pool

SWEPT_AFTER_S = ANSWER_QUEUE_AGE_MS // 1000
LEAST_S = (PATIENCE_MS + HEARS_MS) // 1000 + 1  # by then an offer has its answer, or its client has heard of none
MAX_QUEUES = 10


class SweptView(Struct, frozen=True, kw_only=True):
    """How many queues were deleted, how many could not be, and how many offers got which end."""

    answer_queues: int
    mailboxes: int
    failed: int
    denied: int
    timed_out: int


class SweepAnswers(Operation[SweptView], frozen=True, kw_only=True, tag="sweep"):
    """Delete answer queues, and end offers, from this age on.

    Earlier than the schedule does it is for who knows that no client will look into its queue again.
    """

    changes = True
    older_than_s: Annotated[int, Meta(ge=LEAST_S, le=SWEPT_AFTER_S)] = SWEPT_AFTER_S


class RendezvousView(Struct, frozen=True, kw_only=True):
    """How many proxies wait, how the offers of the last two minutes ended, by state, and what queues hold, by URL."""

    waiting: Mapping[Pool, int]
    recent_offers: Mapping[str, int]
    held: Mapping[str, QueueDepth]


class ShowRendezvous(Operation[RendezvousView], frozen=True, kw_only=True, tag="show"):
    """Show how the rendezvous stands, and what these queues hold: its offers queue, its dead letters."""

    queues: Annotated[tuple[str, ...], Meta(max_length=MAX_QUEUES)] = ()


SweeperOperation = SweepAnswers | ShowRendezvous
