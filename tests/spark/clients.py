"""The package's client of the in-memory SQS."""

from typing import Any

from sluice_spark.sqs.access import Endpoint
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.signing import Credentials


def client_of(sqs: Any, *, connections: int) -> SqsClient:
    endpoint, key = Endpoint(url=sqs.url + "/", region="eu-west-1"), Credentials(access_key="A", secret_key="s")
    return SqsClient(endpoint, lambda: key, connections=connections)
