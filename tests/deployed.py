"""A site of the embedded cloud as tests see it: what is deployed, and AWS clients that act as the account's root."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.aws.operator.deployment import STACK
from sluice.local.access import SiteAccess
from sluice.local.requests import SqsRequest, read_requests

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient


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

    @property
    def client_sqscreds(self) -> str:
        return self.sqscreds

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
