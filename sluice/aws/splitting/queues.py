"""SQS adapters of splitting, which find queues by their names, and the reader of S3 objects' metadata.

A queue's URL is derived from another queue's URL, since a look-up would cost a request for each queue.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ParamValidationError,
    UnsupportedS3AccesspointConfigurationError,
    UnsupportedS3ArnError,
)

from sluice.aws import clients
from sluice.aws.client_types import SQSClient
from sluice.aws.clients import calls
from sluice.aws.queues import delete_batch, send_batch
from sluice.errors import CallFailed, QueueGone
from sluice.message import Message
from sluice.splitting.filters.texts import S3Object

if TYPE_CHECKING:  # These imports are only for type hints: the bundles don't include boto3-stubs.
    from mypy_boto3_sqs.literals import QueueAttributeNameType

RECEIVED_AT_ONCE = 10
COUNTS: tuple["QueueAttributeNameType", ...] = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


# S3 returns these errors if the object is gone, access is denied, or the request is invalid, for example without the
# customer's encryption key. The filter then gets no metadata, and the message is routed without metadata.
ABSENT = frozenset({"404", "NoSuchKey", "403", "AccessDenied", "400", "InvalidBucketName"})
# boto3 raises these errors for invalid names of buckets or objects, before any request.
IMPOSSIBLE = (ParamValidationError, UnsupportedS3ArnError, UnsupportedS3AccesspointConfigurationError)
# The time-outs are short because a whole batch of messages waits for the metadata.
CONFIG = clients.CONFIG.merge(Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2}))


@dataclass(frozen=True, slots=True)
class SplitQueues:
    """Sends SQS requests for queues by name. Raises `CallFailed`. `sibling_url` is any URL of the same site."""

    client: SQSClient
    sibling_url: str

    def url(self, name: str) -> str:
        """Return the URL of the queue with this name, derived from `sibling_url` without a request."""
        return self.sibling_url.rsplit("/", 1)[0] + "/" + name

    def send_batch(self, name: str, entries: Sequence[dict[str, Any]]) -> Mapping[str, str]:
        """Send up to ten entries to a queue. Returns SQS's reasons for refused entries, by id. Raises `QueueGone`."""
        return send_batch(self.client, self.url(name), entries, queue=name)

    def describe(self, name: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Read the attributes and the tags of a queue. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            response = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])
        with calls("ListQueueTags", queue=name):
            tags = self.client.list_queue_tags(QueueUrl=self.url(name)).get("Tags", {})
        return {str(key): value for key, value in response["Attributes"].items()}, tags

    def create(self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Create a queue, or accept an existing one with the same attributes."""
        with calls("CreateQueue"):
            # boto3-stubs allows only literal attribute names, but these names were read from another queue.
            self.client.create_queue(QueueName=name, Attributes=dict(attributes), tags=dict(tags))  # type: ignore[arg-type]

    def delete(self, name: str) -> None:
        """Delete a queue, if it exists."""
        try:
            with calls("DeleteQueue", queue=name):
                self.client.delete_queue(QueueUrl=self.url(name))
        except QueueGone:
            return

    def receive_batch(self, name: str) -> Sequence[Message]:
        """Receive up to ten messages that are available now. Raises `QueueGone`."""
        with calls("ReceiveMessage", queue=name):
            received = self.client.receive_message(
                QueueUrl=self.url(name),
                MaxNumberOfMessages=RECEIVED_AT_ONCE,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return [Message.from_api(message) for message in received.get("Messages", [])]

    def delete_batch(self, name: str, messages: Sequence[Message]) -> None:
        """Delete received messages. Raises `CallFailed` if SQS refuses to delete one."""
        delete_batch(self.client, self.url(name), [message.receipt_handle for message in messages], queue=name)

    def count(self, name: str) -> int:
        """Count a queue's messages, also in flight and delayed. Counts lag up to a minute. Raises `QueueGone`."""
        with calls("GetQueueAttributes", queue=name):
            response = self.client.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=list(COUNTS))
        return sum(int(response["Attributes"][key]) for key in COUNTS)

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all queues with this prefix."""
        paginator = self.client.get_paginator("list_queues")
        with calls("ListQueues"):
            for page in paginator.paginate(QueueNamePrefix=prefix, PaginationConfig={"PageSize": 1000}):
                yield from (url.rsplit("/", 1)[-1] for url in page.get("QueueUrls", []))


@dataclass(frozen=True)
class S3Metadata:
    """Reads the metadata of S3 objects, with one `HeadObject` per object; thread-safe."""

    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def _s3(self) -> Any:
        # The S3 client is created on first use, because most filters need no metadata.
        return clients.make_client("s3", config=CONFIG)

    def __call__(self, s3_object: S3Object) -> dict[str, str]:
        """Read an object's metadata. Raises `CallFailed`.

        Returns an empty dict if the object can't exist, was deleted, or may not be read.
        """
        with self._lock:
            client = self._s3
        version = {"VersionId": s3_object.version_id} if s3_object.version_id else {}
        try:
            with calls("HeadObject"):
                head = client.head_object(Bucket=s3_object.bucket, Key=s3_object.key, **version)
        except CallFailed as error:
            cause = error.__cause__
            if isinstance(cause, IMPOSSIBLE) or (isinstance(cause, ClientError) and error.code in ABSENT):
                return {}
            raise
        return dict(head.get("Metadata", {}))
