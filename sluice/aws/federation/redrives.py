"""Dead letters back to where they came from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.dead_letters import read
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.errors import CallFailed
from sluice.message import DeadLetter, Message, Outgoing

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

FIFO_SUFFIX = ".fifo"
LOOKS_S = 1  # a poll that doesn't wait asks some servers alone, and may find nothing where there is something
HELD_S = 30  # how long a dead letter of another queue is held while the rest is looked through
MAX_LETTERS = 1_000  # that one request moves
RECEIVED_AT_ONCE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrives:
    """Through a boto3 client. Dead letters say which queue they were in."""

    queues: SqsSiteQueues
    client: "SQSClient"
    dead_letters_url: str
    may_go_on: Callable[[], bool] = lambda: True

    def redrive(self, queue: str) -> int:
        """Put dead letters of the queue back, a thousand at most; how many. What was tried too often starts anew."""
        moved = 0
        while moved < MAX_LETTERS and self.may_go_on() and (letters := self._received()):
            wanted = [letter for letter in letters if letter.source.rsplit(":", 1)[-1] == queue]
            for letter in wanted:
                self._send(queue, letter.message)
                with calls("DeleteMessage"):
                    self.client.delete_message(
                        QueueUrl=self.dead_letters_url, ReceiptHandle=letter.message.receipt_handle
                    )
            moved += len(wanted)
        return moved

    def _received(self) -> Sequence[DeadLetter]:
        with calls("ReceiveMessage"):
            received = self.client.receive_message(
                QueueUrl=self.dead_letters_url,
                MaxNumberOfMessages=RECEIVED_AT_ONCE,
                VisibilityTimeout=HELD_S,
                WaitTimeSeconds=LOOKS_S,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return [read(Message.of_api(message)) for message in received.get("Messages", [])]

    def _send(self, queue: str, message: Message) -> None:
        fifo = queue.endswith(FIFO_SUFFIX)
        outgoing = Outgoing(
            body=message.body,
            attributes=message.attributes,
            group_id=message.group_id or (message.message_id if fifo else None),
            deduplication_id=message.message_id if fifo else None,
            trace_header=message.trace_header,
        )
        for reason in self.queues.send_batch(queue, [outgoing.entry("0")]).values():
            raise CallFailed("SendMessageBatch", "Failed", reason)
