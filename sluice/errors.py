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


def describe_reason(error: Exception) -> str:
    """Return the reason text of a dead letter: the error's declared reason, or else its class, and its message."""
    reason = error.dead_letter_reason if isinstance(error, SluiceError) else None
    return f"{reason or type(error).__name__}: {error}"


class SenderFault(SluiceError):
    """The message can never succeed, so it is dead-lettered without a retry."""


class Malformed(SenderFault):
    """A message body doesn't decode. The error's text has the position, in the JSON decoder's words."""

    dead_letter_reason = Reason.MALFORMED


class OfferRefused(SenderFault):
    """A client's offer gets an error reply."""

    dead_letter_reason = Reason.OFFER_REFUSED

    def __init__(self, reply: str) -> None:
        """Create the error with the protocol's error text `reply`, which the client will read."""
        super().__init__(reply)
        self.reply = reply


class TooLarge(SenderFault):
    """A message with federation's metadata is larger than SQS accepts."""

    dead_letter_reason = Reason.TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        """Create the error with the message's size and the limit, both in bytes."""
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
    """A sender that is no peer sent a message to a queue that is only for peers."""

    dead_letter_reason = Reason.NO_PEER


class NotPermitted(SenderFault):
    """A peer sent a message to an exchange, but may not push to it."""

    dead_letter_reason = Reason.NOT_PERMITTED


class WentAround(SenderFault):
    """A message's copy came back so often that the sites' routes must disagree or form a loop."""

    dead_letter_reason = Reason.WENT_AROUND


class Dropped(SenderFault):
    """A queue route may not forward a message. No consumer has received the message, so it is kept as a dead letter."""

    dead_letter_reason = Reason.DROPPED


class NotSifted(SenderFault):
    """A route's filter fails on a message, so the route can't decide whether to forward the message."""

    dead_letter_reason = Reason.NOT_SIFTED


class DestinationFault(SluiceError):
    """The destination of a message fails, perhaps only temporarily."""


class QueueGone(DestinationFault):
    """The destination queue doesn't exist, or no longer exists."""

    dead_letter_reason = Reason.QUEUE_GONE

    def __init__(self, queue: str) -> None:
        """Create the error with the queue's URL or name."""
        super().__init__(f"no such queue: {queue}")
        self.queue = queue


class CallFailed(DestinationFault):
    """AWS refused a call, or the call failed on its way."""

    dead_letter_reason = Reason.CALL_FAILED

    def __init__(self, operation: str, code: str, message: str) -> None:
        """Create the error. `code` is AWS's error code, for example `AccessDenied`."""
        super().__init__(f"{operation}: {code}: {message}")
        self.operation = operation
        self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether the error is temporary: the same call may succeed in about a minute."""
        code = self.code.rpartition(".")[2]  # SQS's error codes may have a prefix.
        return code in PASSING or (code == "InvalidParameterValueException" and any(map(str(self).__contains__, LATER)))


# With these error codes, AWS or the network is overloaded or down:
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
# A deleted queue's name is free after a minute. An event source mapping accepts no change during its last change:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
# https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html
PASSING = OVERLOADED | {"QueueDeletedRecently", "ResourceConflictException", "ResourceInUseException"}
# Lambda checks an event source mapping's queue with the function's role. A new queue is visible after a second.
# Changed permissions take effect after several seconds:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html
LATER = ("NonExistentQueue", "does not have permissions to call", "cannot be assumed by Lambda")


class NotDelivered(DestinationFault):
    """A message was not delivered to one of its receivers. The error's text has the reason."""

    dead_letter_reason = Reason.NOT_DELIVERED


class HeldBack(DestinationFault):
    """A message waits for an earlier message of its group, which failed."""


class NotReached(HeldBack):
    """A batch's time was up before the message was sent. Neither the message nor its receivers are the cause."""


class PeerUnreachable(DestinationFault):
    """A call to a peer failed with an error that may be transient."""

    dead_letter_reason = Reason.PEER_UNREACHABLE


class PeerRefused(DestinationFault):
    """A peer's queue doesn't exist or refuses messages. An operator must correct the route or the peer."""

    dead_letter_reason = Reason.PEER_REFUSED


class TooBusy(SluiceError):
    """Too many concurrent writes conflicted. The request may be repeated."""


class BadConfiguration(SluiceError):
    """A configuration is invalid."""


class BadBinding(BadConfiguration):
    """A binding or an exchange is invalid. The error's text has the reason."""


class BadPlace(BadConfiguration):
    """A place in the operator's input is invalid. An empty place means the whole input."""

    of: ClassVar[str] = ""  # This text precedes the place in the message.

    def __init__(self, place: str | int, cause: str) -> None:
        """Create the error. `place` is a path with dots, a key, a name or a line number, depending on the class."""
        super().__init__(f"{self.of}{place}: {cause}" if place else cause)
        self.place = str(place)
        self.cause = cause


class BadBridgeList(BadPlace):
    """A bridge list has an invalid line, so the whole list is rejected. The place is the line number, from 1."""

    of = "bridge list, line "


class BadConsumer(BadPlace):
    """The setting that names a consumer's queue can't be found or changed. Nothing was changed."""


class BadFilter(BadPlace):
    """A part of a session's filters is invalid. Nothing is created for the session."""


class BadParameter(BadPlace):
    """A parameter of the stacks is unknown or invalid. The place is the context key, as `cdk -c` takes it."""

    of = "parameter "


class BadRequest(BadConfiguration):
    """A request names no known operation, or has a missing or invalid field. The error's text names the place."""


class BadRoute(BadConfiguration):
    """A link or a route is refused. The error's text has the reason."""


class BadSnapshot(BadConfiguration):
    """A routing snapshot is damaged, or has a format that this version can't read."""

    dead_letter_reason = Reason.BAD_SNAPSHOT


class BadSetting(BadPlace):
    """An environment variable of a function is missing or unreadable."""

    of = "environment variable "


class BadTopology(BadPlace):
    """A part of a topology file is invalid. Nothing was changed at any site.

    The place is a path with dots, for example `sites.eu.routes[3].key`.
    """


class RequestRefused(BadConfiguration):
    """A function refused a request. Nothing was changed, and the error's text has the function's reason."""
