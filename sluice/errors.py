"""Every error that Sluice raises, split by whose fault it is, which decides what happens to the message.

SluiceError
├── SenderFault          the message can never succeed: never retried, dead-lettered with the reason
│   ├── Malformed        its JSON doesn't decode, or a field has the wrong type
│   ├── OfferRefused     a client's offer that gets an error reply; the text is the protocol's
│   ├── TooLarge         with federation's metadata it is more than SQS carries
│   ├── UnknownExchange  it names an exchange that isn't there
│   ├── NoPeer           it is in a queue for peers, and of none
│   ├── NotPermitted     a peer's, for an exchange that the peer may not push to
│   ├── WentAround       it has crossed too many bridges
│   ├── Dropped          a queue route's, that may not go over
│   └── NotSifted        a route's filter fails on it
├── DestinationFault     the other end, for now: retried by the queue, dead-lettered when it keeps failing
│   ├── QueueGone        the queue doesn't exist
│   ├── CallFailed       AWS refused or failed a call
│   ├── NotDelivered     a message didn't get to one of its receivers
│   ├── HeldBack         a message waits for an earlier one of its group: never dead-lettered for that
│   │   └── NotReached   a message waits for a batch with time for it
│   ├── PeerUnreachable  a call to a peer failed in a way that may pass
│   ├── PeerRefused      a peer's queue isn't there, or may not be sent to
│   └── MappingGone      an event source mapping doesn't exist
├── TooBusy              too many wrote at once; the request may be repeated
└── BadConfiguration     ours or the operator's: found at synth or at the first call, never per message
    ├── BadBinding       a binding, or an exchange, that can't be
    ├── BadPlace         one place of what the operator wrote
    │   ├── BadBridgeList    one line of a bridge list
    │   ├── BadConsumer      a place where a consumer's queue is configured
    │   ├── BadFilter        one place of a session's filter file
    │   ├── BadParameter     one parameter of the stacks
    │   ├── BadSetting       one environment variable of a function
    │   └── BadTopology      one place of a topology file
    ├── BadRequest       it names no operation of a function, or lacks a field
    ├── BadRoute         a link or a route that is refused
    ├── BadSnapshot      a routing snapshot that this version can't read
    └── RequestRefused   a function says what is wrong with what it was asked
"""

from typing import ClassVar

from sluice.dead_letter_reasons import Reason


class SluiceError(Exception):
    """Base class of all errors that Sluice raises on purpose.

    `dead_letter_reason` is the reason of a dead letter with this error; None if the error never makes a dead letter.
    """

    dead_letter_reason: ClassVar[Reason | None] = None


def dead_letter_text(error: Exception) -> str:
    """Say why a message is a dead letter: its error's reason, or the class of an error that nobody foresaw."""
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
        """`reply` is the error text of the protocol, as the client will read it."""
        super().__init__(reply)
        self.reply = reply


class TooLarge(SenderFault):
    """With federation's metadata, a message is larger than SQS accepts."""

    dead_letter_reason = Reason.TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        """Both in bytes."""
        super().__init__(f"{size} bytes with metadata, more than {limit}")
        self.size = size
        self.limit = limit


class UnknownExchange(SenderFault):
    """A message names an exchange that doesn't exist."""

    dead_letter_reason = Reason.UNKNOWN_EXCHANGE

    def __init__(self, exchange: str) -> None:
        """`exchange` is its name."""
        super().__init__(f"no such exchange: {exchange}")
        self.exchange = exchange


class NoPeer(SenderFault):
    """A message arrived in a peers-only queue from a sender that is no peer."""

    dead_letter_reason = Reason.NO_PEER


class NotPermitted(SenderFault):
    """A peer sent a message to an exchange to which it may not push."""

    dead_letter_reason = Reason.NOT_PERMITTED


class WentAround(SenderFault):
    """A copy was turned back so often that the sites' routes must disagree or form a loop."""

    dead_letter_reason = Reason.WENT_AROUND


class Dropped(SenderFault):
    """A queue route may not forward a message. No consumer has it yet, so it is kept as a dead letter."""

    dead_letter_reason = Reason.DROPPED


class NotSifted(SenderFault):
    """A route's filter fails on a message, so it isn't known whether to forward it."""

    dead_letter_reason = Reason.NOT_SIFTED


class DestinationFault(SluiceError):
    """The destination fails, for now."""


class QueueGone(DestinationFault):
    """The queue doesn't exist, or no longer exists."""

    dead_letter_reason = Reason.QUEUE_GONE

    def __init__(self, queue: str) -> None:
        """`queue` is its URL or its name."""
        super().__init__(f"no such queue: {queue}")
        self.queue = queue


class CallFailed(DestinationFault):
    """AWS refused a call, or the call failed."""

    dead_letter_reason = Reason.CALL_FAILED

    def __init__(self, operation: str, code: str, message: str) -> None:
        """`code` is AWS's error code, for example `AccessDenied`."""
        super().__init__(f"{operation}: {code}: {message}")
        self.operation = operation
        self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether it is no answer to what was asked: in a minute or so the same call may well succeed."""
        code = self.code.rpartition(".")[2]  # SQS's may have a prefix
        return code in PASSING or (code == "InvalidParameterValueException" and any(map(str(self).__contains__, LATER)))


# AWS, or the way to it, has too much to do or is down:
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
# A queue's name is free a minute after it was deleted; a mapping can't be changed, or made again, while its last change
# is under way:
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
# https://docs.aws.amazon.com/lambda/latest/api/API_UpdateEventSourceMapping.html
PASSING = OVERLOADED | {"QueueDeletedRecently", "ResourceConflictException", "ResourceInUseException"}
# Lambda tries a mapping's queue with the function's role: the queue is there a second after it was made, what the role
# may do some seconds after that was said:
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


class MappingGone(DestinationFault):
    """The event source mapping doesn't exist, or no longer exists."""

    dead_letter_reason = Reason.MAPPING_GONE


class TooBusy(SluiceError):
    """Too many concurrent writes; the request may be repeated."""


class BadConfiguration(SluiceError):
    """A configuration is invalid."""


class BadBinding(BadConfiguration):
    """A binding or an exchange is invalid. The text has the reason."""


class BadPlace(BadConfiguration):
    """A place in what the operator wrote that can't be used, and why; an empty place is all of it."""

    of: ClassVar[str] = ""  # what is said before the place

    def __init__(self, place: str | int, cause: str) -> None:
        """`place` is what an error's class says: a path with dots, a key, a name or a line's number."""
        super().__init__(f"{self.of}{place}: {cause}" if place else cause)
        self.place = str(place)
        self.cause = cause


class BadBridgeList(BadPlace):
    """A bridge list has an invalid line; the whole list is rejected.

    Its place is the line's number, from 1.
    """

    of = "bridge list, line "


class BadConsumer(BadPlace):
    """The setting that names a consumer's queue can't be found or changed; nothing was changed."""


class BadFilter(BadPlace):
    """A part of a session's filters is invalid; nothing is created for the session."""


class BadParameter(BadPlace):
    """A parameter of the stacks is unknown or invalid.

    Its place is the context's key, which `cdk -c` takes.
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

    It is a path with dots, for example `sites.eu.routes[3].key`.
    """


class RequestRefused(BadConfiguration):
    """A function refused a request; the text has its reason, and nothing was changed."""
