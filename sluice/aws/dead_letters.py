"""Writes and reads dead letters, each with the reason for which it was dead-lettered.

A dead letter has the message's body, attributes, group and trace, and two more attributes: `sluice-reason`, and
`sluice-source`, the ARN of its queue. SQS limits the number of attributes. Beyond this limit, one attribute contains
all of the message's own attributes: `sluice-attributes`, JSON in the format of Lambda's events. The caller provides the
reason's text.

If the size limit leaves no room for these, `sluice-message` has body and attributes compressed, in the same format.
Any text takes less room then; only binary attributes may not. The message's own content has priority: the end of the
reason is left out first, then the whole reason, then the source. Then the log has both, with the message's id.
"""

import contextlib
import json
import re
import zlib
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
COMPRESSED = "sluice-message"
COMPRESSED_BODY = "`sluice dlq show` prints this message, which is compressed to make room for its reason"
MAX_UNCOMPRESSED = 8 * MAX_MESSAGE_BYTES  # This limit is for a message's JSON, in which a character may take six bytes.
MAX_REASON = 1_000  # A reason has at most this many characters.
ADDED_ATTRIBUTES = 2  # A dead letter adds two attributes: its reason and its source queue.

# This text replaces an offer in a dead letter, because an offer contains IP addresses.
OFFER_PLACEHOLDER = "an offer of {} characters"
_OFFER_PLACEHOLDER = re.compile(OFFER_PLACEHOLDER.format(r"\d+"))

logger = Logger()


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Sends to a dead-letter queue. `redact` returns the part of a message that this queue may store."""

    client: SQSClient
    url: str
    redact: Callable[[Message], Message] = lambda message: message

    def send(self, letter: DeadLetter) -> None:
        """Send the message to the dead-letter queue, with the reason. Raises `CallFailed`."""
        letter = replace(letter, message=self.redact(letter.message))
        sent = build_dead_letter(letter)
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


def build_dead_letter(letter: DeadLetter) -> Outgoing:
    """Build the message for the dead-letter queue. It has as much of the reason as there is room for."""
    message, body = letter.message, letter.message.body
    attributes = dict(message.attributes)
    if len(attributes) + ADDED_ATTRIBUTES > MAX_ATTRIBUTES:
        packed = {PACKED: Value("String", json.dumps({name: value.to_lambda() for name, value in attributes.items()}))}
        attributes = packed if message_size(message.body, packed) <= MAX_MESSAGE_BYTES else attributes
    # The reason may quote characters that SQS accepts only as JSON escapes.
    reason = NOT_TEXT.sub("\ufffd", letter.reason[:MAX_REASON])
    added = {SOURCE: Value("String", letter.source), REASON: Value("String", reason)}
    whole = {**attributes, **added}
    if len(whole) > MAX_ATTRIBUTES or message_size(body, whole) > MAX_MESSAGE_BYTES or COMPRESSED in message.attributes:
        own = {name: value.to_lambda() for name, value in message.attributes.items()}
        content = json.dumps({"messageId": "", "body": body, "messageAttributes": own}, ensure_ascii=False)
        compressed = {COMPRESSED: Value("Binary", zlib.compress(content.encode()))}
        if message_size(COMPRESSED_BODY, {**compressed, **added}) <= MAX_MESSAGE_BYTES:
            body, attributes = COMPRESSED_BODY, compressed
    # The source must be complete, because a redrive depends on it. Of the reason, a part is better than nothing.
    for name, text, least in ((SOURCE, letter.source, len(letter.source)), (REASON, reason, 1)):
        room = MAX_MESSAGE_BYTES - message_size(body, attributes) - message_size(name, {"": Value("String", "")})
        content = text.encode()[: max(room, 0)].decode(errors="ignore")
        if len(attributes) < MAX_ATTRIBUTES and len(content) >= max(least, 1):
            attributes[name] = Value("String", content)
    return Outgoing(
        body=body,
        attributes=attributes,
        group_id=message.group_id,
        trace_header=message.trace_header,
    )


def read_dead_letter(message: Message) -> DeadLetter:
    """Read a received dead letter: the original message with its own attributes, the reason and the source queue.

    `reason` is Lambda's if Lambda sent the dead letter. If SQS moved the message itself, `reason` is empty, and SQS
    names the source queue. `source` is empty if the source queue is unknown.
    """
    texts = {name: value.text or "" for name, value in message.attributes.items()}
    own = {name: value for name, value in message.attributes.items() if name not in {REASON, SOURCE}}
    body = message.body
    # A sender may use the same attribute names. If the content can't be unpacked, the attributes are the sender's own.
    compressed = own[COMPRESSED].content if own.keys() == {COMPRESSED} and body == COMPRESSED_BODY else None
    if isinstance(compressed, bytes):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, zlib.error):
            text = zlib.decompressobj().decompress(compressed, MAX_UNCOMPRESSED)
            whole = Message.from_lambda(read_json(text.decode()))
            body, own = whole.body, dict(whole.attributes)
    elif own.keys() == {PACKED}:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            unpacked = {"messageId": "", "body": "", "messageAttributes": read_json(texts[PACKED])}
            kept = Message.from_lambda(unpacked).attributes
            own = dict(kept) if len(kept) + ADDED_ATTRIBUTES > MAX_ATTRIBUTES else own
    return DeadLetter(
        message=replace(message, body=body, attributes=own),
        reason=texts.get(REASON) or texts.get(LAMBDAS_REASON, ""),
        source=texts.get(SOURCE) or message.system.get(MOVED_FROM, ""),
    )


def is_offer_placeholder(message: Message) -> bool:
    """Return whether this message is the dead letter of an offer, which got no reply."""
    return _OFFER_PLACEHOLDER.fullmatch(message.body) is not None
