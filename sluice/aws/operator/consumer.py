"""Reads a queue of a site as the command line does: by the name that people know it by."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import NotUsable, listed_outputs
from sluice.errors import CallFailed
from sluice.message import Message

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient

STACK = "SluiceFederation"
MAX_AT_ONCE = 10
MAX_WAIT_S = 20  # of a long poll
QUEUE_OUTPUT = re.compile(r"Queue\w+Url")


def queue_url(connection: Connection, name: str) -> str:
    """Give the URL of a queue by its name in cdk.json, or in SQS, or itself. Raises `QueueGone`, or `CallFailed`."""
    if name.startswith(("http://", "https://")):
        return name
    made = _made(connection, name)
    if made is not None:
        return made
    client: SQSClient = connection.client("sqs")
    with calls("GetQueueUrl", queue=name):
        return client.get_queue_url(QueueName=name)["QueueUrl"]


def _made(connection: Connection, name: str) -> str | None:
    """Read the queues' names in the descriptions of the stack's outputs; without a stack there are none."""
    try:
        outputs = listed_outputs(connection, STACK)
    except (CallFailed, NotUsable):
        return None
    for output in outputs:
        if output.get("Description") == name and QUEUE_OUTPUT.fullmatch(output["OutputKey"]):
            return output["OutputValue"]
    return None


@dataclass(frozen=True, slots=True)
class Consumer:
    """One queue through a client. Raises `QueueGone` or `CallFailed`."""

    client: "SQSClient"
    url: str

    def receive(self, *, most: int, wait_s: int) -> Sequence[Message]:
        """Up to `most` messages, ten at most; none after `wait_s`, twenty at most."""
        with calls("ReceiveMessage", queue=self.url):
            received = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(most, MAX_AT_ONCE),
                WaitTimeSeconds=min(wait_s, MAX_WAIT_S),
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
        return [Message.of_api(message) for message in received.get("Messages", [])]

    def delete(self, message: Message) -> None:
        """Delete the message, which is done."""
        with calls("DeleteMessage", queue=self.url):
            self.client.delete_message(QueueUrl=self.url, ReceiptHandle=message.receipt_handle)

    def give_back(self, message: Message) -> None:
        """Whoever comes next receives it."""
        with calls("ChangeMessageVisibility", queue=self.url):
            self.client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=message.receipt_handle, VisibilityTimeout=0
            )
