"""SQS as the rendezvous asks for it: `sluice.rendezvous.ports.Queues`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from sluice.aws.clients import calls, error_code
from sluice.errors import QueueGone

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

# The JSON protocol's code and the query protocol's, which botocore may report instead.
GONE = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"})


@dataclass(frozen=True, slots=True)
class SqsQueues:
    """SQS through a client. `sibling_url` is the URL of any queue of the same account and region."""

    client: "SQSClient"
    sibling_url: str

    def create(self, name: str, attributes: Mapping[str, str]) -> str:
        """See the port."""
        with calls("CreateQueue"):
            # boto3's type names every attribute; ours are constants of the callers.
            made = self.client.create_queue(QueueName=name, Attributes=dict(attributes))  # type: ignore[arg-type]
        return made["QueueUrl"]

    def send(self, url: str, body: str, *, attributes: Mapping[str, str] | None = None, delay_s: int = 0) -> None:
        """See the port."""
        with no_such_queue(url), calls("SendMessage"):
            self.client.send_message(
                QueueUrl=url,
                MessageBody=body,
                DelaySeconds=delay_s,
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in (attributes or {}).items()
                },
            )

    def receive(self, url: str, *, wait_s: int) -> str | None:
        """See the port."""
        with no_such_queue(url), calls("ReceiveMessage"):
            received = self.client.receive_message(QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=wait_s)
        messages = received.get("Messages", [])
        return messages[0]["Body"] if messages else None

    def delete(self, name: str) -> bool:
        """See the port. The URL is made from a sibling's: looking it up would be a second request."""
        url = self.sibling_url.rsplit("/", 1)[0] + "/" + name
        try:
            with no_such_queue(url), calls("DeleteQueue"):
                self.client.delete_queue(QueueUrl=url)
        except QueueGone:
            return False
        return True


@contextmanager
def no_such_queue(queue: str) -> Iterator[None]:
    """Turns what says that the queue, by URL or name, doesn't exist into `QueueGone`. Goes around `calls`."""
    try:
        yield
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, ClientError) and error_code(cause) in GONE:
            raise QueueGone(queue) from cause
        raise
