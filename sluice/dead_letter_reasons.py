"""Names of the reasons for dead letters, as commands and `docs/runbook.md` use them. Pure.

A dead letter's text begins with the reason that its error declares (`sluice.errors`). Any other error is `Unexpected`.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Importing the codec would slow down `--help`.
    from sluice.message import DeadLetter

MOVED_FROM = "DeadLetterQueueSourceArn"  # SQS adds this system attribute when it moves a message itself.
LAMBDAS_REASON = "ErrorMessage"  # Lambda adds this attribute to a dead letter that it sends.
ROUTE_GONE = "the route {} is gone"
_BEGIN, _END = ROUTE_GONE.split("{}")


class Reason(StrEnum):
    """The reason for which a message is a dead letter."""

    MALFORMED = "Malformed"
    OFFER_REFUSED = "OfferRefused"
    TOO_LARGE = "TooLarge"
    UNKNOWN_EXCHANGE = "UnknownExchange"
    NO_PEER = "NoPeer"
    NOT_PERMITTED = "NotPermitted"
    WENT_AROUND = "WentAround"
    DROPPED = "Dropped"
    NOT_SIFTED = "NotSifted"
    QUEUE_GONE = "QueueGone"
    CALL_FAILED = "CallFailed"
    NOT_DELIVERED = "NotDelivered"
    PEER_UNREACHABLE = "PeerUnreachable"
    PEER_REFUSED = "PeerRefused"
    BAD_SNAPSHOT = "BadSnapshot"
    ROUTE_GONE = "RouteGone"
    NEVER_DELETED = "NeverDeleted"  # SQS moved the message after too many receives.
    GIVEN_UP = "GivenUp"  # Lambda gave up and sent its own dead letter.
    UNSAID = "Unsaid"  # The message had no room for the reason.
    UNEXPECTED = "Unexpected"


def classify_reason(dead_letter: "DeadLetter") -> Reason:
    """Return the reason for a dead letter."""
    if LAMBDAS_REASON in dead_letter.message.attributes or dead_letter.message.body.startswith('{"requestContext"'):
        return Reason.GIVEN_UP
    if not dead_letter.reason:
        return Reason.NEVER_DELETED if MOVED_FROM in dead_letter.message.system else Reason.UNSAID
    if dead_letter.reason.startswith(_BEGIN) and dead_letter.reason.endswith(_END):
        return Reason.ROUTE_GONE
    try:
        return Reason(dead_letter.reason.partition(":")[0])
    except ValueError:
        return Reason.UNEXPECTED
