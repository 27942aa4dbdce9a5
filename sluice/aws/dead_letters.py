"""Writes and reads dead letters, each with the reason for which it was dead-lettered.

A dead letter has the message's body, attributes, group and trace, and two more attributes: `sluice-reason`, and
`sluice-source`, the ARN of its queue. If SQS doesn't carry that many attributes, one attribute contains all of the
message's own: `sluice-attributes`, JSON in the format of Lambda's events. The caller provides the reason's text.

The message's own content has priority. If the size limit leaves no room for the added attributes, the end of the reason
is left out first, then the whole reason, then the source. Then the log has both, with the message's id.
"""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from aws_lambda_powertools.logging import Logger
from msgspec.structs import replace

from sluice.aws.client_types import SQSClient
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

REASON = "sluice-reason"
SOURCE = "sluice-source"
PACKED = "sluice-attributes"
MAX_REASON = 1_000  # characters
ADDED_ATTRIBUTES = 2  # attributes that a dead letter adds

# Replaces an offer in a dead letter, as its session description contains addresses.
OFFER_PLACEHOLDER = "an offer of {} characters"
_OFFER_PLACEHOLDER = re.compile(OFFER_PLACEHOLDER.format(r"\d+"))

logger = Logger()


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A dead-letter queue and the client for it.

    `redact` returns the part of a message that the queue may keep.
    """

    client: SQSClient
    url: str
    redact: Callable[[Message], Message] = lambda message: message

    def send(self, letter: DeadLetter) -> None:
        """Send the message to the dead-letter queue with the reason. Raises `CallFailed`."""
        letter = replace(letter, message=self.redact(letter.message))
        sent = outgoing(letter)
        with calls("SendMessage"):
            self.client.send_message(QueueUrl=self.url, **sent.fields())
        kept = sent.attributes.get(REASON)
        if kept is None or SOURCE not in sent.attributes or len(kept.content) < min(len(letter.reason), MAX_REASON):
            logger.warning(
                "DeadLetterSaysLess",
                message_id=letter.message.message_id,
                reason=letter.reason,
                source=letter.source,
            )


def outgoing(letter: DeadLetter) -> Outgoing:
    """Build the message for the dead-letter queue, with as much of the reason as fits."""
    message = letter.message
    attributes = dict(message.attributes)
    if len(attributes) + ADDED_ATTRIBUTES > MAX_ATTRIBUTES:
        packed = {PACKED: Value("String", json.dumps({name: value.to_lambda() for name, value in attributes.items()}))}
        attributes = packed if message_size(message.body, packed) <= MAX_MESSAGE_BYTES else attributes
    # The reason may quote characters that SQS accepts only as JSON escapes.
    reason = NOT_TEXT.sub("\ufffd", letter.reason[:MAX_REASON])
    # The source is needed whole, as a redrive depends on it; a part of the reason is better than none.
    for name, text, least in ((SOURCE, letter.source, len(letter.source)), (REASON, reason, 1)):
        room = (
            MAX_MESSAGE_BYTES - message_size(message.body, attributes) - message_size(name, {"": Value("String", "")})
        )
        content = text.encode()[: max(room, 0)].decode(errors="ignore")
        if len(attributes) < MAX_ATTRIBUTES and len(content) >= max(least, 1):
            attributes[name] = Value("String", content)
    return Outgoing(
        body=message.body,
        attributes=attributes,
        group_id=message.group_id,
        trace_header=message.trace_header,
    )


def read(message: Message) -> DeadLetter:
    """Read a received dead letter: the original message with its own attributes, the reason and the source.

    `reason` is Lambda's if Lambda sent the dead letter. It is empty if SQS moved the message; SQS gives the source
    queue. `source` is empty if it is unknown.
    """
    texts = {name: value.text or "" for name, value in message.attributes.items()}
    own = {name: value for name, value in message.attributes.items() if name not in {REASON, SOURCE}}
    if own.keys() == {PACKED}:
        # A sender may use the same name: content that can't be unpacked is the sender's.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            unpacked = {"messageId": "", "body": "", "messageAttributes": read_json(texts[PACKED])}
            kept = Message.from_lambda(unpacked).attributes
            own = dict(kept) if len(kept) + ADDED_ATTRIBUTES > MAX_ATTRIBUTES else own
    return DeadLetter(
        message=replace(message, attributes=own),
        reason=texts.get(REASON) or texts.get(LAMBDAS_REASON, ""),
        source=texts.get(SOURCE) or message.system.get(MOVED_FROM, ""),
    )


def is_offer_placeholder(message: Message) -> bool:
    """Return whether the message is the record of an offer that got no reply."""
    return _OFFER_PLACEHOLDER.fullmatch(message.body) is not None
