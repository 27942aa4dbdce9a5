"""Writes and reads dead letters, each with the reason for which it was dead-lettered.

A dead letter is the message as it was, body, attributes, group and trace, with two attributes more: `sluice-reason` and
`sluice-source`, the ARN of its queue. Where that is more than SQS carries, all of the message's own attributes travel
in one, `sluice-attributes`: JSON, spelled as in Lambda's events. The reason's text is its giver's: `records` says the
error's type and words.

All that is the message's own comes first. What a message of almost the greatest size leaves no room for is left out of
what is said of it: the reason's end, the reason, the source. Then the log has both, with the message's id.
"""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools.logging import Logger
from msgspec.structs import replace

from sluice.aws.clients import calls
from sluice.dead_letter_reasons import LAMBDAS_REASON, MOVED_FROM
from sluice.documents import read_json
from sluice.message import (
    MAX_ATTRIBUTES,
    MAX_MESSAGE_BYTES,
    NOT_TEXT,
    DeadLetter,
    Message,
    Outgoing,
    Value,
    message_size,
)

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

REASON = "sluice-reason"
SOURCE = "sluice-source"
PACKED = "sluice-attributes"
MAX_REASON = 1_000  # characters
SAID = 2  # attributes that are added

# What is kept of an offer, whose description has addresses.
OFFER_KEPT = "an offer of {} characters"
_OFFER_KEPT = re.compile(OFFER_KEPT.format(r"\d+"))

logger = Logger()


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A dead-letter queue, through a client.

    `kept` says what of a message is kept there.
    """

    client: "SQSClient"
    url: str
    kept: Callable[[Message], Message] = lambda message: message

    def bury(self, letter: DeadLetter) -> None:
        """Send the message there with the reason. Raises `CallFailed`."""
        letter = replace(letter, message=self.kept(letter.message))
        sent = outgoing(letter)
        with calls("SendMessage"):
            self.client.send_message(QueueUrl=self.url, **sent.fields())
        said = sent.attributes.get(REASON)
        if said is None or SOURCE not in sent.attributes or len(said.content) < min(len(letter.reason), MAX_REASON):
            logger.warning(
                "DeadLetterSaysLess",
                message_id=letter.message.message_id,
                reason=letter.reason,
                source=letter.source,
            )


def outgoing(letter: DeadLetter) -> Outgoing:
    """Build the message for the dead-letter queue, with as much of the reason as there is room for."""
    message = letter.message
    attributes = dict(message.attributes)
    if len(attributes) + SAID > MAX_ATTRIBUTES:
        packed = {PACKED: Value("String", json.dumps({name: value.to_lambda() for name, value in attributes.items()}))}
        attributes = packed if message_size(message.body, packed) <= MAX_MESSAGE_BYTES else attributes
    # It may quote what SQS took in an escape of JSON alone, and would refuse here.
    reason = NOT_TEXT.sub("\ufffd", letter.reason[:MAX_REASON])
    # Without a source nobody finds it again to put it back; a part of a reason is better than none.
    for name, text, least in ((SOURCE, letter.source, len(letter.source)), (REASON, reason, 1)):
        room = (
            MAX_MESSAGE_BYTES - message_size(message.body, attributes) - message_size(name, {"": Value("String", "")})
        )
        said = text.encode()[: max(room, 0)].decode(errors="ignore")
        if len(attributes) < MAX_ATTRIBUTES and len(said) >= max(least, 1):
            attributes[name] = Value("String", said)
    return Outgoing(
        body=message.body,
        attributes=attributes,
        group_id=message.group_id,
        trace_header=message.trace_header,
    )


def read(message: Message) -> DeadLetter:
    """Read the dead letter that was received: the message with its own attributes, as before it died.

    `reason` is Lambda's own where that sent it, and empty where SQS moved it, which says from which queue. `source` is
    empty where nobody says it.
    """
    said = {name: value.text or "" for name, value in message.attributes.items()}
    own = {name: value for name, value in message.attributes.items() if name not in {REASON, SOURCE}}
    if own.keys() == {PACKED}:
        # A sender may use the name too: what doesn't unpack is the sender's own.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            unpacked = {"messageId": "", "body": "", "messageAttributes": read_json(said[PACKED])}
            kept = Message.from_lambda(unpacked).attributes
            own = dict(kept) if len(kept) + SAID > MAX_ATTRIBUTES else own
    return DeadLetter(
        message=replace(message, attributes=own),
        reason=said.get(REASON) or said.get(LAMBDAS_REASON, ""),
        source=said.get(SOURCE) or message.system.get(MOVED_FROM, ""),
    )


def is_offer_kept(message: Message) -> bool:
    """Return whether the message is the record of an offer, to which nobody could reply."""
    return _OFFER_KEPT.fullmatch(message.body) is not None
