"""A queue that `sluice queue move` empties: `sluice.federation.moves.LeftQueue`."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.queues import delete_batch
from sluice.errors import CallFailed, QueueGone
from sluice.message import Message

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient

HIDDEN_S = 120  # from everybody else, while a message is on its way, or waits for the move's end
AT_ONCE = 10
GIVES_BACK = 3  # times, what SQS fails to show by its own fault


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """One queue through a client. `wait_s` is how long it waits for a message before there are none."""

    client: "SQSClient"
    url: str
    wait_s: int

    def receive(self, *, most: int) -> Sequence[Message]:
        """Receive up to `most` messages. Raises `QueueGone`, `CallFailed`."""
        with calls("ReceiveMessage", queue=self.url):
            received = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=self.wait_s,
                VisibilityTimeout=HIDDEN_S,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        return [Message.of_api(message) for message in received.get("Messages", [])]

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete received messages, ten at most. Raises `QueueGone`, `CallFailed`."""
        delete_batch(self.client, self.url, [message.receipt_handle for message in messages], queue=self.url)

    def give_back(self, messages: Sequence[Message]) -> None:
        """Show received messages to whoever comes next; what can't be shown is, once its time is out."""
        left = list(messages)
        for _ in range(GIVES_BACK):
            few = [left[start : start + AT_ONCE] for start in range(0, len(left), AT_ONCE)]
            left = [message for each in few for message in self._still_hidden(each)]

    def _still_hidden(self, messages: Sequence[Message]) -> Sequence[Message]:
        with suppress(CallFailed, QueueGone), calls("ChangeMessageVisibilityBatch", queue=self.url):
            done = self.client.change_message_visibility_batch(
                QueueUrl=self.url,
                Entries=[
                    {"Id": str(place), "ReceiptHandle": message.receipt_handle, "VisibilityTimeout": 0}
                    for place, message in enumerate(messages)
                ],
            )
            return [messages[int(each["Id"])] for each in done.get("Failed", []) if not each["SenderFault"]]
        return ()  # botocore has tried again already
