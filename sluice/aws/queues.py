"""SQS adapters: send batches to queues by URL or name, receive, delete, and the queues of the rendezvous."""

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

MAX_BATCH = 10  # SQS's limit of messages in one call
MAX_WAIT_S = 20  # SQS's limit of a long poll, in seconds
RELEASE_ATTEMPTS = 3  # attempts for messages that SQS fails to release by its own fault


def send_batch(
    client: SQSClient, url: str, entries: Sequence[dict[str, Any]], *, queue: str | None = None
) -> Mapping[str, str]:
    """Send up to ten entries. Returns the ids of entries that SQS refused, each with SQS's reason.

    Raises `QueueGone` with the `queue`, the caller's name for it, or the URL, and `CallFailed` if the whole call fails.
    """
    with calls("SendMessageBatch", queue=queue or url):
        # boto3's type names every field of an entry; `sluice.message` builds the entries.
        done = client.send_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    return {failed["Id"]: f"{failed['Code']}: {failed.get('Message', '')}" for failed in done.get("Failed", [])}


def delete_batch(client: SQSClient, url: str, receipt_handles: Sequence[str], *, queue: str) -> None:
    """Delete up to ten received messages. Raises `QueueGone` with the `queue`, and `CallFailed` if one fails."""
    entries = [{"Id": str(place), "ReceiptHandle": handle} for place, handle in enumerate(receipt_handles)]
    with calls("DeleteMessageBatch", queue=queue):
        # boto3's type is a TypedDict of the same two fields.
        done = client.delete_message_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
    for failed in done.get("Failed", []):
        raise CallFailed("DeleteMessageBatch", failed["Code"], failed.get("Message", ""))


def delete_message(client: SQSClient, url: str, receipt_handle: str) -> None:
    """Delete a received message. Raises `QueueGone`, `CallFailed`."""
    with calls("DeleteMessage", queue=url):
        client.delete_message(QueueUrl=url, ReceiptHandle=receipt_handle)


def fetch_depth(client: SQSClient, url: str) -> QueueDepth:
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
    """Queues of any account from which a function receives. `sample_queue_url` is the URL of one of the region's."""

    client: SQSClient
    sample_queue_url: str

    def change_visibility(self, arn: str, delays_s: Mapping[str, int]) -> None:
        """Make up to ten messages visible again before their visibility timeout. Raises `CallFailed` if one fails.

        `delays_s` are the seconds until then, by receipt handle.
        """
        account, name = arn.split(":")[4:]
        url = f"{self.sample_queue_url.rsplit('/', 2)[0]}/{account}/{name}"
        entries = [
            {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": wait_s}
            for place, (handle, wait_s) in enumerate(delays_s.items())
        ]
        with calls("ChangeMessageVisibilityBatch"):
            # boto3's type is a TypedDict of the same three fields.
            done = self.client.change_message_visibility_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
        for failed in done.get("Failed", []):
            raise CallFailed("ChangeMessageVisibilityBatch", failed["Code"], failed.get("Message", ""))


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """A queue from which messages are received and deleted.

    `wait_s` is the wait time of a receive; `visibility_timeout_s` is the visibility timeout of received messages, None
    for the queue's own.
    """

    client: SQSClient
    url: str
    wait_s: int = 0
    visibility_timeout_s: int | None = None

    def receive(self, *, most: int, wait_s: int | None = None) -> Sequence[Message]:
        """Receive up to `most` messages, at most ten. Raises `QueueGone`, `CallFailed`."""
        return [Message.from_api(received) for received in self.receive_raw(most=most, wait_s=wait_s)]

    def receive_raw(self, *, most: int, wait_s: int | None = None) -> Sequence[Any]:
        """Receive messages in the format of the SQS API."""
        hidden: dict[str, Any] = (
            {} if self.visibility_timeout_s is None else {"VisibilityTimeout": self.visibility_timeout_s}
        )
        with calls("ReceiveMessage", queue=self.url):
            received = self.client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(most, MAX_BATCH),
                WaitTimeSeconds=min(self.wait_s if wait_s is None else wait_s, MAX_WAIT_S),
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
                **hidden,
            )
        return received.get("Messages", [])

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete up to ten received messages. Raises `QueueGone`, `CallFailed`."""
        delete_batch(self.client, self.url, [message.receipt_handle for message in messages], queue=self.url)

    def release(self, messages: Sequence[Message]) -> None:
        """Make received messages visible at once. If that fails, they become visible after their visibility timeout."""
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
        return ()  # botocore has already retried the call


class SqsQueues(msgspec.Struct, frozen=True):
    """The queues of the rendezvous, through SQS clients.

    `sibling_url` is the URL of any queue of the same account and region.

    `long_polling_client` is a client whose read timeout exceeds every wait of `receive`; it is needed if that of
    `client` doesn't.
    """

    client: SQSClient
    sibling_url: str
    long_polling_client: SQSClient | None = None

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """Create a queue, or find one with the same attributes. Returns its URL. Raises `CallFailed`."""
        with calls("CreateQueue"):
            # boto3's type names every attribute; the callers' attributes are constants.
            made = self.client.create_queue(QueueName=name, Attributes=dict(attributes))  # type: ignore[arg-type]
        return made["QueueUrl"]

    def url(self, name: str) -> str:
        """Return the URL of a queue. It is derived from `sibling_url`, as a look-up would be a request."""
        return self.sibling_url.rsplit("/", 1)[0] + "/" + name

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        """Send a message with these String attributes. Raises `QueueGone` or `CallFailed`."""
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
        """Receive a message's body, waiting up to `wait_s`, without a deletion. Raises `QueueGone`, `CallFailed`."""
        with calls("ReceiveMessage", queue=url):
            client = self.long_polling_client or self.client
            received = client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=wait_s)
        messages = received.get("Messages", [])
        return messages[0]["Body"] if messages else None

    def delete(self, name: str) -> bool:
        """Delete a queue by name; False if the queue doesn't exist. Raises `CallFailed`."""
        url = self.url(name)
        try:
            with calls("DeleteQueue", queue=url):
                self.client.delete_queue(QueueUrl=url)
        except QueueGone:
            return False
        return True
