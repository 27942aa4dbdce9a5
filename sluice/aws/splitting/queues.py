"""SQS as splitting asks for it, by queue name: `sluice.splitting.ports.TargetQueues` and `ControlledQueues`.

A queue's URL is made from a sibling's: looking it up would be a request for each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.queues import QueuesByName, delete_batch
from sluice.errors import QueueGone
from sluice.message import Message

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs.literals import QueueAttributeNameType

RECEIVED_AT_ONCE = 10
COUNTS: tuple["QueueAttributeNameType", ...] = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


@dataclass(frozen=True, slots=True)
class SplitQueues(QueuesByName):
    """SQS through a client; raises `CallFailed`. `sibling_url` is that of any queue of the same account and region."""

    def describe(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Read a queue's attributes and tags. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            found = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])
        with calls("ListQueueTags", queue=name):
            tags = self.client.list_queue_tags(QueueUrl=self.url(name)).get("Tags", {})
        return {str(key): value for key, value in found["Attributes"].items()}, tags

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Make a queue, or find it where it is there with the same attributes."""
        with calls("CreateQueue"):
            # boto3's type names every attribute; ours are those of another queue.
            self.client.create_queue(QueueName=name, Attributes=dict(attributes), tags=dict(tags))  # type: ignore[arg-type]

    def set_attributes(self, name: str, attributes: Mapping[str, str]) -> None:
        """Change these of a queue's attributes; the others stay. Raises `QueueGone`."""
        with calls("SetQueueAttributes", queue=name):
            # boto3's type names every attribute; ours are those of another queue.
            self.client.set_queue_attributes(QueueUrl=self.url(name), Attributes=dict(attributes))  # type: ignore[arg-type]

    def delete(self, name: str) -> None:
        """Delete a queue; one that doesn't exist is no error."""
        try:
            with calls("DeleteQueue", queue=name):
                self.client.delete_queue(QueueUrl=self.url(name))
        except QueueGone:
            return

    def receive_batch(self, name: str) -> Sequence[Message]:
        """Receive up to ten messages, without waiting for more. Raises `QueueGone`."""
        with calls("ReceiveMessage", queue=name):
            received = self.client.receive_message(
                QueueUrl=self.url(name),
                MaxNumberOfMessages=RECEIVED_AT_ONCE,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return [Message.of_api(message) for message in received.get("Messages", [])]

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        """Delete received messages. Raises `CallFailed` where SQS refuses one."""
        delete_batch(self.client, self.url(name), [message.receipt_handle for message in messages], queue=name)

    def count(self, name: str) -> int:
        """Count its messages, in flight and delayed ones too, as SQS does: a minute late. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            found = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=list(COUNTS))
        return sum(int(found["Attributes"][key]) for key in COUNTS)

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all queues that begin so."""
        pages = iter(
            self.client.get_paginator("list_queues").paginate(
                QueueNamePrefix=prefix, PaginationConfig={"PageSize": 1000}
            )
        )
        while True:
            with calls("ListQueues"):
                page = next(pages, None)
            if page is None:
                return
            yield from (url.rsplit("/", 1)[-1] for url in page.get("QueueUrls", []))
