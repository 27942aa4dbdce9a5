"""Dead letters back to where they came from."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.aws.dead_letters import read
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.aws.queues import delete_batch
from sluice.batches import Entry, standard_round
from sluice.errors import CallFailed
from sluice.message import DeadLetter, Message, Outgoing

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

FIFO_SUFFIX = ".fifo"
LOOKS_S = 1  # a poll that doesn't wait asks some servers alone, and may find nothing where there is something
HELD_S = 30  # how long a dead letter of another queue is held while the rest is looked through
MAX_LOOKED_AT = 1_000  # of the dead letters, by one call: other queues' are passed over
RECEIVED_AT_ONCE = 10


class Redrives(msgspec.Struct, frozen=True, kw_only=True):
    """Through a boto3 client. Dead letters say which queue they were in."""

    queues: SqsSiteQueues
    client: "SQSClient"
    dead_letters_url: str
    may_go_on: Callable[[], bool] = lambda: True

    def redrive(self, queue: str) -> int:
        """Put dead letters of the queue back, of a thousand at most; how many. What was tried too often starts anew."""
        moved = looked_at = 0
        while looked_at < MAX_LOOKED_AT and self.may_go_on() and (letters := self._received()):
            looked_at += len(letters)
            wanted = [each.message for each in letters if each.source.rsplit(":", 1)[-1] == queue]
            if wanted:
                self._put_back(queue, wanted)
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

    def _put_back(self, queue: str, messages: Sequence[Message]) -> None:
        """Send and then delete. What SQS refuses stays; it is raised when the others are done. Raises `CallFailed`."""
        for request in standard_round(_entries(queue, messages)):
            refused = self.queues.send_batch(queue, request.api())
            sent = [
                messages[entry.position].receipt_handle
                for place, entry in enumerate(request.entries)
                if str(place) not in refused
            ]
            if sent:
                delete_batch(self.client, self.dead_letters_url, sent, queue=self.dead_letters_url)
            for reason in refused.values():
                raise CallFailed("SendMessageBatch", "Failed", reason)


def _entries(queue: str, messages: Sequence[Message]) -> Iterator[Entry]:
    fifo = queue.endswith(FIFO_SUFFIX)
    for position, message in enumerate(messages):
        outgoing = Outgoing(
            body=message.body,
            attributes=message.attributes,
            group_id=message.group_id or (message.message_id if fifo else None),
            deduplication_id=message.message_id if fifo else None,
            trace_header=message.trace_header,
        )
        yield Entry(position=position, target=queue, outgoing=outgoing)
