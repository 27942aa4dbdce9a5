"""The ends of offers, polls and answers, with the name of each end in metrics, events and replies. Pure.

To add an end, add a line to this table, and code that decides on it. Metrics, dashboards, events, statistics, stored
offers and replies follow from the table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

OPEN = "received"  # This is the state of a stored offer that has no end yet.


class End(StrEnum):
    """An end of an offer, poll or answer. Its value is the name of its CloudWatch metric.

    `kind` is the kind of its events: offer, poll or answer. `event` is the outcome in events, logs and statistics,
    empty if this end has no event. `state` is the state of the stored offer, empty if no offer is stored with this end.
    `reply` is the protocol's text for the client or proxy. `status` is the HTTP status for clients that read no text.
    """

    kind: str
    event: str
    state: str
    reply: str
    status: int

    # Columns: metric, kind, event, state, reply, status.
    OFFER_MATCHED = "OffersMatched", "offer", "matched", "answered"
    OFFER_WAITING = "OffersWaiting", "offer"  # The offer is queued for polls.
    OFFER_DENIED = "OffersDenied", "offer", "denied", "denied", "no snowflake proxies currently available", 503
    OFFER_TIMED_OUT = "OffersTimedOut", "offer", "timeout", "timed out", "timed out waiting for answer!", 504
    OFFER_REFUSED = "OffersRefused", "offer", "", "refused", "", 400  # The reply to a malformed offer names the fault.
    OFFER_STALE = "OffersStale", "offer"  # The client gave up before the broker received the offer.
    OFFER_REPEATED = "OffersRepeated", "offer"  # The message of an offer was redelivered.
    OFFER_ANONYMOUS = "OffersAnonymous", "offer"  # Without a valid ClientID, no reply can be sent.

    POLL_MATCHED = "PollsMatched", "poll", "matched", "", "client match"
    POLL_IDLE = "PollsIdle", "poll", "idle", "", "no match"  # The poll was held, but no offer arrived.
    POLL_DEFERRED = "PollsDeferred", "poll", "idle", "", "no match"  # The poll wasn't held, and no offer was waiting.
    POLL_REFUSED = "PollsRefused", "poll", "rejected", "", "incorrect relay pattern"  # The proxy excludes our relay.
    POLL_LOST = "PollsLost", "poll", "idle", "", "no match"  # The broker died before sending the offer.

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
        """Create the member from the columns of its line in the table above."""
        end = str.__new__(cls, metric)
        end._value_ = metric
        end.kind, end.event, end.state, end.reply, end.status = kind, event, state, reply, status
        return end


def list_metrics(kind: str) -> tuple[str, ...]:
    """List the metrics of all ends of this kind: offer, poll or answer."""
    return tuple(end.value for end in End if end.kind == kind)


def list_outcomes(kind: str) -> tuple[str, ...]:
    """List the different outcomes that events of this kind can have."""
    return tuple(dict.fromkeys(end.event for end in End if end.kind == kind and end.event))


# Ends of offers by stored state; None means that the offer is still open.
BY_STATE: Mapping[str, End | None] = {OPEN: None} | {end.state: end for end in End if end.state}
