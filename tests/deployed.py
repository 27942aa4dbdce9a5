"""A site of the embedded cloud as tests see it: what is deployed, and AWS clients that act as the account's root."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError

from sluice.aws.clients import GONE, get_error_code
from sluice.aws.deployment import STACK
from sluice.aws.rendezvous.clients import ClientCredentials, open_client
from tests.site_access import SiteAccess
from tests.sqs_requests import SqsRequest, read_requests
from tests.waiting import growing_pauses

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient


T = TypeVar("T")

SETTLES_WITHIN_S = 90  # what AWS makes or changes; longer than any of its delays
LOOK_EVERY_S = 0.05
BATCH = 10
AGAIN_AFTER_S = 15
DELETED_RECENTLY = frozenset({"QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently"})
UNKNOWN_KEY = frozenset({"InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId"})


def retry_until_accepted(call: Callable[[], T], *, passing: frozenset[str]) -> T:
    """What it gives once it raises none of these errors."""
    deadline = time.monotonic() + SETTLES_WITHIN_S
    for pause in growing_pauses():
        try:
            return call()
        except ClientError as error:
            if get_error_code(error) not in passing or time.monotonic() > deadline:
                raise
            time.sleep(pause)
    raise AssertionError


def settled(call: Callable[[], object], *, passing: frozenset[str]) -> None:
    """Call until it raises none of these errors; what else it raises isn't looked at."""
    with suppress(ClientError):
        retry_until_accepted(call, passing=passing)


def make_queue(sqs: "SQSClient", name: str, attributes: Mapping[str, str] | None = None) -> str:
    """Makes a queue and waits until it can be used, as who makes one by hand does; its URL."""
    # boto3's type names every attribute; ours are the tests'.
    create = partial(sqs.create_queue, QueueName=name, Attributes=dict(attributes or {}))  # type: ignore[arg-type]
    url = retry_until_accepted(create, passing=DELETED_RECENTLY)["QueueUrl"]
    retry_until_accepted(lambda: sqs.get_queue_url(QueueName=name), passing=GONE)
    return url


def send_all(sqs: "SQSClient", url: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Sends messages, and again those whose entry fails by no fault of ours; to a FIFO queue one by one, in order."""
    size = 1 if url.endswith(".fifo") else BATCH
    for start in range(0, len(entries), size):
        left = [{**entry, "Id": str(number)} for number, entry in enumerate(entries[start : start + size])]
        while left:
            # boto3's type names every field of an entry; ours are the tests'.
            failed = sqs.send_message_batch(QueueUrl=url, Entries=left).get("Failed", [])  # type: ignore[arg-type]
            assert not any(failure["SenderFault"] for failure in failed), failed
            left = [entry for entry in left if entry["Id"] in {failure["Id"] for failure in failed}]


def redeliver_soon(sqs: "SQSClient") -> None:
    """Lets what a function failed to pass on come again in seconds: the queues' own minutes would only make it longer.

    A FIFO queue keeps its own time: a second receive amid the first would break its order.
    """
    for url in sqs.list_queues(QueueNamePrefix="SluiceState-").get("QueueUrls", []):
        if "DeadLetters" not in url and not url.endswith(".fifo"):
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": str(AGAIN_AFTER_S)})


def delete_all(sqs: "SQSClient", url: str, messages: Sequence[Any]) -> None:
    """Deletes received messages, and again those whose entry fails by no fault of ours."""
    left = [{"Id": str(number), "ReceiptHandle": each["ReceiptHandle"]} for number, each in enumerate(messages)]
    while left:
        failed = sqs.delete_message_batch(QueueUrl=url, Entries=left).get("Failed", [])  # type: ignore[arg-type]  # as above
        assert not any(failure["SenderFault"] for failure in failed), failed
        left = [entry for entry in left if entry["Id"] in {failure["Id"] for failure in failed}]


@dataclass(frozen=True)
class Deployed(SiteAccess):
    """One site with the stacks deployed."""

    relay_port: int  # where the one bridge of its bridge list is, on loopback

    @property
    def endpoint(self) -> str:
        return self.cloud.endpoint

    @property
    def account(self) -> str:
        return self.site.account

    @property
    def region(self) -> str:
        return self.site.region

    @property
    def broker_url(self) -> str:
        return self.deployment.broker_url

    @property
    def offers_queue_url(self) -> str:
        return self.deployment.offers_queue_url

    @cached_property
    def client_sqscreds(self) -> str:
        """Those of a new key, once that acts."""
        credentials = ClientCredentials.parse(self.sqscreds)
        client = open_client(credentials, region=self.region, endpoint_url=self.endpoint)
        settled(lambda: client.get_queue_url(QueueName="any"), passing=UNKNOWN_KEY)
        return self.sqscreds

    def make_queue(self, name: str) -> str:
        """A new queue, which is there; its URL."""
        return make_queue(self.sqs, name)

    def client(self, service: str) -> Any:
        return self.connection.client(service)

    @cached_property
    def sqs(self) -> "SQSClient":
        return self.client("sqs")

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        return self.client("dynamodb")

    @cached_property
    def functions(self) -> "LambdaClient":
        return self.client("lambda")

    def function_name(self, logical_id: str) -> str:
        """The physical name of the one function of the stack whose logical id begins so."""
        resources = self.client("cloudformation").describe_stack_resources(StackName=STACK)["StackResources"]
        [name] = [
            resource["PhysicalResourceId"]
            for resource in resources
            if resource["ResourceType"] == "AWS::Lambda::Function"
            and resource["LogicalResourceId"].startswith(logical_id)
        ]
        return name

    def invoke(self, logical_id: str, event: dict[str, Any]) -> Any:
        """Calls a function with an event; its result. Fails the test where the function fails."""
        done = self.functions.invoke(FunctionName=self.function_name(logical_id), Payload=json.dumps(event).encode())
        result = json.loads(done["Payload"].read() or b"null")
        assert "FunctionError" not in done, result
        return result

    def depth(self, url: str) -> int:
        """Messages in the queue, those in flight included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]  # type: ignore[arg-type]
        return sum(map(int, counts.values()))

    def requests_since(self, offset: int) -> Iterator[SqsRequest]:
        return read_requests(self.cloud.request_log, offset=offset)

    def request_offset(self) -> int:
        return self.cloud.request_log.stat().st_size
