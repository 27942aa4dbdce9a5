"""AWS's client of the in-memory SQS."""

from typing import Any

import boto3

from tests.sqs.server import State


def client_of(state: State) -> Any:
    keys: Any = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    return boto3.client("sqs", region_name="eu-central-1", endpoint_url=state.url, **keys)
