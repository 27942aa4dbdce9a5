"""Dead letters that say why they are there: one format, written and read here alone.

A dead letter is the message as it was, body, attributes, group and trace, with two attributes more: `sluice-reason` and
`sluice-source`, the ARN of its queue. Where that is more than SQS carries, all of the message's own attributes travel
in one, `sluice-attributes`: JSON, spelled as in Lambda's events. The reason's text is its giver's: `records` says the
error's type and words.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.message import MAX_ATTRIBUTES, NOT_TEXT, DeadLetter, Message, Outgoing, Value

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

REASON = "sluice-reason"
SOURCE = "sluice-source"
PACKED = "sluice-attributes"
LAMBDAS_REASON = "ErrorMessage"  # the attribute with which Lambda itself sends a dead letter
MAX_REASON = 1_000  # characters
SAID = 2  # attributes that are added


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A dead-letter queue, through a client: `sluice.federation.ports.DeadLetters`.

    `kept` says what of a message is kept there.
    """

    client: "SQSClient"
    url: str
    kept: Callable[[Message], Message] = lambda message: message

    def bury(self, letter: DeadLetter) -> None:
        """Send the message there with the reason. Raises `CallFailed`."""
        letter = replace(letter, message=self.kept(letter.message))
        with calls("SendMessage"):
            self.client.send_message(QueueUrl=self.url, **outgoing(letter).fields())


def outgoing(letter: DeadLetter) -> Outgoing:
    """Spell the message as the dead-letter queue gets it. Its reason is cut to a thousand characters."""
    kept = dict(letter.message.attributes)
    if len(kept) + SAID > MAX_ATTRIBUTES:
        packed = {name: value.of_event() for name, value in kept.items()}
        kept = {PACKED: Value("String", json.dumps(packed))}
    # It may quote what SQS took in an escape of JSON alone, and would refuse here.
    reason = NOT_TEXT.sub("\ufffd", letter.reason[:MAX_REASON])
    said = {REASON: Value("String", reason), SOURCE: Value("String", letter.source)}
    return Outgoing(
        body=letter.message.body,
        attributes={**kept, **said},
        group_id=letter.message.group_id,
        trace_header=letter.message.trace_header,
    )


def read(message: Message) -> DeadLetter:
    """Read the dead letter that was received: the message with its own attributes, as before it died.

    `reason` is Lambda's own where that sent it, and empty where SQS moved it, `source` is empty for both.
    """
    said = {name: value.text or "" for name, value in message.attributes.items()}
    own = {name: value for name, value in message.attributes.items() if name not in {REASON, SOURCE}}
    if own.keys() == {PACKED}:
        # A sender may use the name too: what doesn't unpack is the sender's own.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            unpacked = {"messageId": "", "body": "", "messageAttributes": json.loads(said[PACKED])}
            kept = Message.of_lambda(unpacked).attributes
            own = dict(kept) if len(kept) + SAID > MAX_ATTRIBUTES else own
    return DeadLetter(
        message=replace(message, attributes=own),
        reason=said.get(REASON) or said.get(LAMBDAS_REASON, ""),
        source=said.get(SOURCE, ""),
    )
