"""SQS as federation asks for it: the site's own queues, and those that bridges read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.splitting.queues import SplitQueues

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

VISIBLE_AGAIN_S = 5  # after an outage of a peer nobody reads the queue by then, until it is back


@dataclass(frozen=True, slots=True)
class SqsSiteQueues(SplitQueues):
    """`sluice.federation.ports.SiteQueues`. `arn_prefix` is an ARN of the site's queues without the name."""

    arn_prefix: str = ""

    def arn(self, name: str) -> str:
        """Return a queue's ARN."""
        return self.arn_prefix + name


@dataclass(frozen=True, slots=True)
class BridgeQueues:
    """The queues that functions read, through a client."""

    client: "SQSClient"

    def show_soon(self, url: str, receipt_handles: Sequence[str]) -> None:
        """Lets received messages, ten at most, be received again in a few seconds, without their time-out."""
        entries = [
            {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": VISIBLE_AGAIN_S}
            for place, handle in enumerate(receipt_handles)
        ]
        with calls("ChangeMessageVisibilityBatch"):
            # boto3's type is a TypedDict of the same three fields.
            self.client.change_message_visibility_batch(QueueUrl=url, Entries=entries)  # type: ignore[arg-type]
