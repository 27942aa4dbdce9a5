"""Why messages are dead letters: each reason has one name, by which commands and `docs/runbook.md` call it. Pure.

What a letter says begins with the reason that its error declares (`sluice.errors`). What a message died of otherwise is
`Unexpected`.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # errors declare reasons, and `--help` has errors: it shall not wait for messages' codec
    from sluice.message import DeadLetter

MOVED_FROM = "DeadLetterQueueSourceArn"  # the system attribute of what SQS itself has moved
LAMBDAS_REASON = "ErrorMessage"  # the attribute with which Lambda itself sends a dead letter
ROUTE_GONE = "the route {} is gone"
_BEGIN, _END = ROUTE_GONE.split("{}")


class Reason(StrEnum):
    """What a message died of."""

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
    MAPPING_GONE = "MappingGone"
    BAD_SNAPSHOT = "BadSnapshot"
    ROUTE_GONE = "RouteGone"
    NEVER_DELETED = "NeverDeleted"  # SQS moved it: received too often
    GIVEN_UP = "GivenUp"  # Lambda did, and tells of it
    UNSAID = "Unsaid"  # there was no room for it
    UNEXPECTED = "Unexpected"


def reason_of(letter: "DeadLetter") -> Reason:
    """Name what the letter died of."""
    if LAMBDAS_REASON in letter.message.attributes or letter.message.body.startswith('{"requestContext"'):
        return Reason.GIVEN_UP
    if not letter.reason:
        return Reason.NEVER_DELETED if MOVED_FROM in letter.message.system else Reason.UNSAID
    if letter.reason.startswith(_BEGIN) and letter.reason.endswith(_END):
        return Reason.ROUTE_GONE
    try:
        return Reason(letter.reason.partition(":")[0])
    except ValueError:
        return Reason.UNEXPECTED
