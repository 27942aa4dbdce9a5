"""A site of the embedded cloud as tests see it: its outputs, and AWS clients that act as the account's root."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from sluice.local.cloud import SECRET, Cloud
from sluice.local.requests import SqsRequest, read_requests
from sluice.local.sites import Site

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

STACK = "SluiceRendezvous"


@dataclass(frozen=True)
class Deployed:
    """One site with the stacks deployed."""

    cloud: Cloud
    site: Site
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

    def client(self, service: str) -> Any:
        session = boto3.session.Session(
            aws_access_key_id=self.account, aws_secret_access_key=SECRET, region_name=self.region
        )
        config = Config(max_pool_connections=64, read_timeout=60, retries={"total_max_attempts": 1})
        return session.client(service, endpoint_url=self.endpoint, config=config)

    @cached_property
    def sqs(self) -> "SQSClient":
        return self.client("sqs")

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        return self.client("dynamodb")

    @cached_property
    def functions(self) -> "LambdaClient":
        return self.client("lambda")

    @cached_property
    def outputs(self) -> dict[str, str]:
        stack = self.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}

    @cached_property
    def broker_url(self) -> str:
        function_id = self.outputs["BrokerUrl"].removeprefix("https://").split(".")[0]
        return f"{self.endpoint}/_aws/lambda-url/{function_id}/"

    @property
    def offers_queue_url(self) -> str:
        return self.outputs["OffersQueueUrl"]

    @cached_property
    def client_sqscreds(self) -> str:
        key = self.client("iam").create_access_key(UserName=self.outputs["ClientUserName"])["AccessKey"]
        fields = {"aws-access-key-id": key["AccessKeyId"], "aws-secret-key": key["SecretAccessKey"]}
        return base64.b64encode(json.dumps(fields).encode()).decode()

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

    def requests_since(self, offset: int) -> Iterator[SqsRequest]:
        return read_requests(self.cloud.request_log, offset=offset)

    def request_offset(self) -> int:
        return self.cloud.request_log.stat().st_size
