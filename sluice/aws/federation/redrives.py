"""Dead letters back to where they came from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.federation.queues import SiteQueues
from sluice.aws.records import PACKED, REASON, SOURCE
from sluice.errors import CallFailed
from sluice.message import TRACE_HEADER, Attributes, Message, Outgoing

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

FIFO_SUFFIX = ".fifo"
HELD_S = 30  # how long a dead letter of another queue is held while the rest is looked through
MAX_LETTERS = 1_000  # that one request moves
RECEIVED_AT_ONCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrives:
    """Through a boto3 client. Dead letters say which queue they were in."""

    queues: SiteQueues
    client: "SQSClient"
    dead_letters_url: str

    def redrive(self, queue: str) -> int:
        """Puts dead letters of the queue back, a thousand at most; how many. What was tried too often starts anew."""
        moved = 0
        while moved < MAX_LETTERS and (letters := self._received()):
            wanted = [letter for letter in letters if _source_of(letter).rsplit(":", 1)[-1] == queue]
            for letter in wanted:
                self._send(queue, letter)
                with calls("DeleteMessage"):
                    self.client.delete_message(QueueUrl=self.dead_letters_url, ReceiptHandle=letter.receipt_handle)
            moved += len(wanted)
        return moved

    def _received(self) -> Sequence[Message]:
        with calls("ReceiveMessage"):
            received = self.client.receive_message(
                QueueUrl=self.dead_letters_url,
                MaxNumberOfMessages=RECEIVED_AT_ONCE,
                VisibilityTimeout=HELD_S,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return [Message.of_api(message) for message in received.get("Messages", [])]

    def _send(self, queue: str, letter: Message) -> None:
        fifo = queue.endswith(FIFO_SUFFIX)
        outgoing = Outgoing(
            body=letter.body,
            attributes=_original(letter.attributes),
            group_id=letter.group_id or (letter.message_id if fifo else None),
            deduplication_id=letter.message_id if fifo else None,
            trace_header=letter.system.get(TRACE_HEADER),
        )
        for reason in self.queues.send_batch(queue, [outgoing.entry("0")]).values():
            raise CallFailed("SendMessageBatch", "Failed", reason)


def _source_of(letter: Message) -> str:
    source = letter.attributes.get(SOURCE)
    return (source.text if source is not None else None) or ""


def _original(attributes: Attributes) -> Attributes:
    """The attributes as they were before the message died."""
    packed = attributes.get(PACKED)
    if packed is not None and packed.text is not None:
        unpacked: Mapping[str, Any] = json.loads(packed.text)
        return Message.of_lambda({"messageId": "", "body": "", "messageAttributes": unpacked}).attributes
    return {name: value for name, value in attributes.items() if name not in {REASON, SOURCE}}
