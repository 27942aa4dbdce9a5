"""All errors that Sluice raises, grouped by who must act. The group decides what happens to the message.

- `SenderFault`: the message can never succeed, so it is dead-lettered with the reason, without a retry.
- `DestinationFault`: the destination fails, so the queue redelivers the message, and finally dead-letters it. A message
  that is `HeldBack` waits for an earlier one, and isn't dead-lettered.
- `BadConfiguration`: an operator must act. It is found at synth or at the first call, never per message.
"""

from typing import ClassVar

from sluice.dead_letter_reasons import Reason


class SluiceError(Exception):
    """Base class of all errors that Sluice raises on purpose.

    `dead_letter_reason` is the reason of a dead letter with this error; None if the error never makes a dead letter.
    """

    dead_letter_reason: ClassVar[Reason | None] = None


def dead_letter_text(error: Exception) -> str:
    """Return the text of a dead letter's reason: the error's declared reason, or its class, and its message."""
    reason = error.dead_letter_reason if isinstance(error, SluiceError) else None
    return f"{reason or type(error).__name__}: {error}"


class SenderFault(SluiceError):
    """The message can never succeed."""


class Malformed(SenderFault):
    """A body doesn't decode. The text has the position, in the JSON decoder's words."""

    dead_letter_reason = Reason.MALFORMED


class OfferRefused(SenderFault):
    """A client's offer gets an error reply."""

    dead_letter_reason = Reason.OFFER_REFUSED

    def __init__(self, reply: str) -> None:
        """Create the error with the protocol's error text `reply`, which the client will read."""
        super().__init__(reply)
        self.reply = reply


class TooLarge(SenderFault):
    """With federation's metadata, a message is larger than SQS accepts."""

    dead_letter_reason = Reason.TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        """Create the error with both sizes in bytes."""
        super().__init__(f"{size} bytes with metadata, more than {limit}")
        self.size = size
        self.limit = limit


class UnknownExchange(SenderFault):
    """A message names an exchange that doesn't exist."""

    dead_letter_reason = Reason.UNKNOWN_EXCHANGE

    def __init__(self, exchange: str) -> None:
        """Create the error with the exchange's name."""
        super().__init__(f"no such exchange: {exchange}")
        self.exchange = exchange


class NoPeer(SenderFault):
    """A message arrived in a peers-only queue from a sender that is no peer."""

    dead_letter_reason = Reason.NO_PEER


class NotPermitted(SenderFault):
    """A peer sent a message to an exchange to which it may not push."""

    dead_letter_reason = Reason.NOT_PERMITTED


class WentAround(SenderFault):
    """A copy was sent back so often that the sites' routes must disagree or form a loop."""

    dead_letter_reason = Reason.WENT_AROUND


class Dropped(SenderFault):
    """A queue route may not forward a message. No consumer has received it, so it is kept as a dead letter."""

    dead_letter_reason = Reason.DROPPED


class NotSifted(SenderFault):
    """A route's filter fails on a message, so the route can't decide whether to forward the message."""

    dead_letter_reason = Reason.NOT_SIFTED


class DestinationFault(SluiceError):
    """The destination fails, perhaps only temporarily."""


class QueueGone(DestinationFault):
    """The queue doesn't exist, or no longer exists."""

    dead_letter_reason = Reason.QUEUE_GONE

    def __init__(self, queue: str) -> None:
        """Create the error with the queue's URL or name."""
        super().__init__(f"no such queue: {queue}")
        self.queue = queue


class CallFailed(DestinationFault):
    """AWS refused a call, or the call failed."""

    dead_letter_reason = Reason.CALL_FAILED

    def __init__(self, operation: str, code: str, message: str) -> None:
        """Create the error. `code` is AWS's error code, for example `AccessDenied`."""
        super().__init__(f"{operation}: {code}: {message}")
        self.operation = operation
        self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether the error is temporary: the same call may well succeed in about a minute."""
        code = self.code.rpartition(".")[2]  # SQS's codes may have a prefix
        return code in PASSING or (code == "InvalidParameterValueException" and any(map(str(self).__contains__, LATER)))


# AWS, or the network, is overloaded or down:
# https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
OVERLOADED = frozenset(
    {
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ProvisionedThroughputExceededException",
        "ReadTimeoutError",
        "RequestThrottled",
        "ServiceException",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# A deleted queue's name is free after a minute. A mapping can't be changed or recreated during its last change:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
# https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html
PASSING = OVERLOADED | {"QueueDeletedRecently", "ResourceConflictException", "ResourceInUseException"}
# Lambda checks a mapping's queue with the function's role. A new queue is visible after a second, and changed
# permissions take effect after some seconds:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html
LATER = ("NonExistentQueue", "does not have permissions to call", "cannot be assumed by Lambda")


class NotDelivered(DestinationFault):
    """A message was not delivered to one of its receivers; the text has the reason."""

    dead_letter_reason = Reason.NOT_DELIVERED


class HeldBack(DestinationFault):
    """A message waits for an earlier message of its group, which failed."""


class NotReached(HeldBack):
    """A batch's time was up before the message was sent; neither the message nor its receivers caused that."""


class PeerUnreachable(DestinationFault):
    """A call to a peer failed with an error that may be transient."""

    dead_letter_reason = Reason.PEER_UNREACHABLE


class PeerRefused(DestinationFault):
    """A peer's queue doesn't exist or refuses messages; an operator must correct that."""

    dead_letter_reason = Reason.PEER_REFUSED


class TooBusy(SluiceError):
    """Too many concurrent writes; the request may be repeated."""


class BadConfiguration(SluiceError):
    """A configuration is invalid."""


class BadBinding(BadConfiguration):
    """A binding or an exchange is invalid. The text has the reason."""


class BadPlace(BadConfiguration):
    """A place in the operator's input is invalid, for the reason given; an empty place means the whole input."""

    of: ClassVar[str] = ""  # text before the place in the message

    def __init__(self, place: str | int, cause: str) -> None:
        """Create the error. `place` is a path with dots, a key, a name or a line's number, depending on the class."""
        super().__init__(f"{self.of}{place}: {cause}" if place else cause)
        self.place = str(place)
        self.cause = cause


class BadBridgeList(BadPlace):
    """A bridge list has an invalid line; the whole list is rejected.

    The place is the line's number, from 1.
    """

    of = "bridge list, line "


class BadConsumer(BadPlace):
    """The setting that names a consumer's queue can't be found or changed; nothing was changed."""


class BadFilter(BadPlace):
    """A part of a session's filters is invalid; nothing is created for the session."""


class BadParameter(BadPlace):
    """A parameter of the stacks is unknown or invalid.

    The place is the context key, which `cdk -c` takes.
    """

    of = "parameter "


class BadRequest(BadConfiguration):
    """A request names no known operation, lacks a field, or has an invalid one. The text has the place."""


class BadRoute(BadConfiguration):
    """A link or a route is refused. The text has the reason."""


class BadSnapshot(BadConfiguration):
    """A routing snapshot is damaged, or has a format that this version can't read."""

    dead_letter_reason = Reason.BAD_SNAPSHOT


class BadSetting(BadPlace):
    """An environment variable of a function is missing or unreadable."""

    of = "environment variable "


class BadTopology(BadPlace):
    """A part of a topology file is invalid; nothing was changed at any site.

    The place is a path with dots, for example `sites.eu.routes[3].key`.
    """


class RequestRefused(BadConfiguration):
    """A function refused a request; the text has its reason, and nothing was changed."""
