"""SQS adapters: send batches to queues, receive and delete messages, and manage the queues of the rendezvous."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.aws.client_types import SQSClient
from sluice.aws.clients import calls
from sluice.errors import CallFailed, QueueGone
from sluice.message import Message
from sluice.operations import QueueDepth

MAX_BATCH = 10  # SQS accepts at most ten messages in one call
MAX_WAIT_S = 20  # SQS's longest long poll, in seconds
RELEASE_ATTEMPTS = 3  # attempts to release messages while SQS fails by its own fault


def send_batch(
    client: SQSClient, url: str, entries: Sequence[dict[str, Any]], *, queue: str | None = None
) -> Mapping[str, str]:
    """Send up to ten entries. Returns the refused entries' ids, each with SQS's reason.

    Raises `CallFailed` if the whole call fails, or `QueueGone`, which names the `queue` if that is passed, or else the
    URL.
    """
    with calls("SendMessageBatch", queue=queue or url):
        # boto3's type of an entry names all its fields, but `sluice.message` builds entries as plain dictionaries.
        done = client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    return {failed["Id"]: f"{failed['Code']}: {failed.get('Message', '')}" for failed in done.get("Failed", [])}


def delete_batch(client: SQSClient, url: str, receipt_handles: Sequence[str], *, queue: str) -> None:
    """Delete up to ten received messages. Raises `CallFailed` if one fails, or `QueueGone` for the `queue`."""
    entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(receipt_handles)]
    with calls("DeleteMessageBatch", queue=queue):
        # boto3's type of an entry is a TypedDict with the same two fields.
        done = client.delete_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    for failed in done.get("Failed", []):
        raise CallFailed("DeleteMessageBatch", failed["Code"], failed.get("Message", ""))


def delete_message(client: SQSClient, url: str, receipt_handle: str) -> None:
    """Delete a received message. Raises `QueueGone`, `CallFailed`."""
    with calls("DeleteMessage", queue=url):
        client.delete_message(QueueUrl=url, ReceiptHandle=receipt_handle)


def count_messages(client: SQSClient, url: str) -> QueueDepth:
    """Return the approximate number of messages in a queue. Raises `CallFailed`."""
    with calls("GetQueueAttributes"):
        counts = client.get_queue_attributes(
            QueueUrl=url,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
    return QueueDepth(
        visible=int(counts["ApproximateNumberOfMessages"]),
        in_flight=int(counts["ApproximateNumberOfMessagesNotVisible"]),
    )


@dataclass(frozen=True, slots=True)
class ReceivedQueues:
    """Changes the visibility of messages that a function has received from queues of any account.

    `sample_queue_url` is the URL of any queue in the region.
    """

    client: SQSClient
    sample_queue_url: str

    def change_visibility(self, arn: str, delays_s: Mapping[str, int]) -> None:
        """Make up to ten messages visible before the end of their visibility timeout. Raises `CallFailed` if one fails.

        `delays_s` has the seconds until a message is visible, by receipt handle.
        """
        account, name = arn.split(":")[4:]
        url = f"{self.sample_queue_url.rsplit('/', 2)[0]}/{account}/{name}"
        entries = [
            {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": wait_s}
            for place, (handle, wait_s) in enumerate(delays_s.items())
        ]
        with calls("ChangeMessageVisibilityBatch"):
            # boto3's type of an entry is a TypedDict with the same three fields.
            done = self.client.change_message_visibility_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        for failed in done.get("Failed", []):
            raise CallFailed("ChangeMessageVisibilityBatch", failed["Code"], failed.get("Message", ""))


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """A queue from which messages are received and deleted.

    `wait_s` is the longest wait of a receive, in seconds. `visibility_timeout_s` applies to received messages; None
    selects the queue's own visibility timeout.
    """

    client: SQSClient
    url: str
    wait_s: int = 0
    visibility_timeout_s: int | None = None

    def receive(self, *, most: int, wait_s: int | None = None) -> Sequence[Message]:
        """Receive up to `most` messages, which is at most ten. Raises `QueueGone`, `CallFailed`."""
        return [Message.from_api(received) for received in self.receive_raw(most=most, wait_s=wait_s)]

    def receive_raw(self, *, most: int, wait_s: int | None = None) -> Sequence[Any]:
        """Receive messages in the format of the SQS API."""
        visibility_options: dict[str, Any] = (
            {} if self.visibility_timeout_s is None else {"VisibilityTimeout": self.visibility_timeout_s}
        )
        with calls("ReceiveMessage", queue=self.url):
            received = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(most, MAX_BATCH),
                WaitTimeSeconds=min(self.wait_s if wait_s is None else wait_s, MAX_WAIT_S),
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
                **visibility_options,
            )
        return received.get("Messages", [])

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete up to ten received messages. Raises `QueueGone`, `CallFailed`."""
        delete_batch(self.client, self.url, [message.receipt_handle for message in messages], queue=self.url)

    def release(self, messages: Sequence[Message]) -> None:
        """Make received messages visible at once. On failure, their visibility timeout makes them visible."""
        left = list(messages)
        for _ in range(RELEASE_ATTEMPTS):
            batches = [left[start : start + MAX_BATCH] for start in range(0, len(left), MAX_BATCH)]
            left = [message for batch in batches for message in self._release_batch(batch)]

    def _release_batch(self, messages: Sequence[Message]) -> Sequence[Message]:
        with suppress(CallFailed, QueueGone), calls("ChangeMessageVisibilityBatch", queue=self.url):
            done = self.client.change_message_visibility_batch(
                QueueUrl=self.url,
                Entries=[
                    {"Id": str(place), "ReceiptHandle": message.receipt_handle, "VisibilityTimeout": 0}
                    for place, message in enumerate(messages)
                ],
            )
            return [messages[int(failed["Id"])] for failed in done.get("Failed", []) if not failed["SenderFault"]]
        return ()  # botocore has already retried the failed call


class SqsQueues(msgspec.Struct, frozen=True):
    """Manages the queues of the rendezvous.

    `sibling_url` is the URL of any queue of the same account and region.

    `long_polling_client` is a client whose read timeout exceeds every wait of `receive`; it is needed if that of
    `client` doesn't.
    """

    client: SQSClient
    sibling_url: str
    long_polling_client: SQSClient | None = None

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """Create a queue, or find an existing one with the same attributes. Returns its URL. Raises `CallFailed`."""
        with calls("CreateQueue"):
            # boto3's type names every attribute, but the callers' attributes are constants of another type.
            made = self.client.create_queue(QueueName=name, Attributes=dict(attributes))  # type: ignore[arg-type]
        return made["QueueUrl"]

    def url(self, name: str) -> str:
        """Derive a queue's URL from `sibling_url`, because a look-up would cost a request."""
        return self.sibling_url.rsplit("/", 1)[0] + "/" + name

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        """Send a message with these attributes, all of type String. Raises `QueueGone` or `CallFailed`."""
        with calls("SendMessage", queue=url):
            self.client.send_message(
                QueueUrl=url,
                MessageBody=body,
                DelaySeconds=delay_s,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in (attributes or {}).items()
                },
            )

    def receive(self, url: str, *, wait_s: int) -> str | None:
        """Receive one message's body without a deletion; wait up to `wait_s`. Raises `QueueGone`, `CallFailed`."""
        with calls("ReceiveMessage", queue=url):
            client = self.long_polling_client or self.client
            received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=wait_s)
        messages = received.get("Messages", [])
        return messages[0]["Body"] if messages else None

    def delete(self, name: str) -> bool:
        """Delete a queue by name. Returns False if the queue doesn't exist. Raises `CallFailed`."""
        url = self.url(name)
        try:
            with calls("DeleteQueue", queue=url):
                self.client.delete_queue(QueueUrl=url)
        except QueueGone:
            return False
        return True
