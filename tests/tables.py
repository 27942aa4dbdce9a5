"""DynamoDB in memory, with tables of the shape that all of the stacks' have."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import boto3
from moto import mock_aws

TABLE = "t"
REGION = "eu-central-1"


def make_table(client: Any, name: str = TABLE) -> None:
    """Make an empty table."""
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": each, "AttributeType": "S"} for each in ("pk", "sk")],
        BillingMode="PAY_PER_REQUEST",
    )


@contextmanager
def table_in_memory(region: str = REGION) -> Iterator[Any]:
    """A client that has one table, `t`, whatever the environment says of AWS."""
    with mock.patch.dict(os.environ, {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}), mock_aws():
        os.environ.pop("AWS_ENDPOINT_URL", None)
        client = boto3.client("dynamodb", region_name=region)
        make_table(client)
        yield client
