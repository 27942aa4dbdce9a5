"""How offers, polls and answers end: one list, with the name that each end has wherever it shows. Pure.

A new end is a line here, and a line where the code decides on it: metrics, dashboards, events, statistics, stored
offers and replies follow from the columns.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

OPEN = "received"  # the state of a stored offer that has no end yet


class End(StrEnum):
    """An end; its value is the name of its CloudWatch metric.

    `kind` is what ended, as events call it, and `event` the outcome in events, in logs and in statistics; empty if no
    event tells of it. `state` is that of the stored offer, empty if none is stored with this end. `reply` is the
    protocol's text for the client or the proxy, and `status` the HTTP status for clients that read no reply.
    """

    kind: str
    event: str
    state: str
    reply: str
    status: int

    # The columns: the metric, the kind, the event, the state, the reply, the status.
    OFFER_MATCHED = "OffersMatched", "offer", "matched", "answered"
    OFFER_WAITING = "OffersWaiting", "offer"  # for a proxy that polls
    OFFER_DENIED = "OffersDenied", "offer", "denied", "denied", "no snowflake proxies currently available", 503
    OFFER_TIMED_OUT = "OffersTimedOut", "offer", "timeout", "timed out", "timed out waiting for answer!", 504
    OFFER_REFUSED = "OffersRefused", "offer", "", "refused", "", 400  # malformed; its client is told why at once
    OFFER_STALE = "OffersStale", "offer"  # its client gave up before the broker saw it
    OFFER_REPEATED = "OffersRepeated", "offer"  # delivered again
    OFFER_ANONYMOUS = "OffersAnonymous", "offer"  # without a ClientID there is no queue to reply to

    POLL_MATCHED = "PollsMatched", "poll", "matched", "", "client match"
    POLL_IDLE = "PollsIdle", "poll", "idle", "", "no match"  # held, and no offer came
    POLL_DEFERRED = "PollsDeferred", "poll", "idle", "", "no match"  # not held, and no offer waited
    POLL_REFUSED = "PollsRefused", "poll", "rejected", "", "incorrect relay pattern"  # it doesn't cover ours
    POLL_LOST = "PollsLost", "poll", "idle", "", "no match"  # matched, but its broker died before it sent the offer

    ANSWER_DELIVERED = "AnswersDelivered", "answer", "success", "", "success"
    ANSWER_TOO_LATE = "AnswersTooLate", "answer", "timeout", "", "client gone"

    def __new__(  # noqa: PLR0917 - a table's columns stand by their place
        cls,
        metric: str,
        kind: str,
        event: str = "",
        state: str = "",
        reply: str = "",
        status: int = 200,
    ) -> Self:
        """Make the member of one line."""
        end = str.__new__(cls, metric)
        end._value_ = metric
        end.kind, end.event, end.state, end.reply, end.status = kind, event, state, reply, status
        return end


def list_metrics(kind: str) -> tuple[str, ...]:
    """List the metrics of all ends of offers, polls or answers."""
    return tuple(end.value for end in End if end.kind == kind)


def list_outcomes(kind: str) -> tuple[str, ...]:
    """List the outcomes that events of a kind can have, each once."""
    return tuple(dict.fromkeys(end.event for end in End if end.kind == kind and end.event))


# By the state of a stored offer; None is the offer that is still open.
BY_STATE: Mapping[str, End | None] = {OPEN: None} | {end.state: end for end in End if end.state}
