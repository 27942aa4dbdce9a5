"""The ends of offers, polls and answers, with the name of each end in metrics, events and replies. Pure.

A new end needs a line in this table, and a line in the code that decides on it. Metrics, dashboards, events,
statistics, stored offers and replies follow from the columns.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

OPEN = "received"  # the state of a stored offer that has no end yet


class End(StrEnum):
    """An end of an offer, poll or answer. Its value is the name of its CloudWatch metric.

    `kind` is the kind of its subject in events, and `event` the outcome in events, logs and statistics, empty if there
    is no event for it. `state` is the state of the stored offer, empty if no offer is stored with this end. `reply` is
    the protocol's text for the client or the proxy, and `status` the HTTP status for clients that read no reply.
    """

    kind: str
    event: str
    state: str
    reply: str
    status: int

    # Columns: metric, kind, event, state, reply, status.
    OFFER_MATCHED = "OffersMatched", "offer", "matched", "answered"
    OFFER_WAITING = "OffersWaiting", "offer"  # the offer is queued for polls
    OFFER_DENIED = "OffersDenied", "offer", "denied", "denied", "no snowflake proxies currently available", 503
    OFFER_TIMED_OUT = "OffersTimedOut", "offer", "timeout", "timed out", "timed out waiting for answer!", 504
    OFFER_REFUSED = "OffersRefused", "offer", "", "refused", "", 400  # the reply to a malformed offer says why
    OFFER_STALE = "OffersStale", "offer"  # the client gave up before the broker received it
    OFFER_REPEATED = "OffersRepeated", "offer"  # a redelivered offer
    OFFER_ANONYMOUS = "OffersAnonymous", "offer"  # the offer has no valid ClientID, so there is no queue for a reply

    POLL_MATCHED = "PollsMatched", "poll", "matched", "", "client match"
    POLL_IDLE = "PollsIdle", "poll", "idle", "", "no match"  # the poll was held, but no offer arrived
    POLL_DEFERRED = "PollsDeferred", "poll", "idle", "", "no match"  # the poll wasn't held, and no offer was waiting
    POLL_REFUSED = "PollsRefused", "poll", "rejected", "", "incorrect relay pattern"  # excludes our relay
    POLL_LOST = "PollsLost", "poll", "idle", "", "no match"  # the broker died before sending the matched offer

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
        """Create the member from the columns of its line above."""
        end = str.__new__(cls, metric)
        end._value_ = metric
        end.kind, end.event, end.state, end.reply, end.status = kind, event, state, reply, status
        return end


def list_metrics(kind: str) -> tuple[str, ...]:
    """List the metrics of all ends of this kind: of offers, polls or answers."""
    return tuple(end.value for end in End if end.kind == kind)


def list_outcomes(kind: str) -> tuple[str, ...]:
    """List the outcomes that events of a kind can have, each once."""
    return tuple(dict.fromkeys(end.event for end in End if end.kind == kind and end.event))


# Ends by the state of the stored offer. None means that the offer is still open.
BY_STATE: Mapping[str, End | None] = {OPEN: None} | {end.state: end for end in End if end.state}
