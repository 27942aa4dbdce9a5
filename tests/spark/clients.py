"""The package's client of the in-memory SQS, and messages as a segment has them."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from sluice_spark.log.segments import build_rows
from sluice_spark.sqs.access import Endpoint, Place
from sluice_spark.sqs.client import SqsClient
from sluice_spark.sqs.received import Received
from sluice_spark.sqs.signing import Credentials

KEY = Credentials(access_key="A", secret_key="s")


def client_at(url: str, key: Callable[[], Credentials] = lambda: KEY, **options: Any) -> SqsClient:
    """A client that calls every queue at one address."""
    place = Place(Endpoint(url=url + "/", region="eu-west-1"), key)
    return SqsClient(lambda _: place, **options)


def client_of(sqs: Any, **options: Any) -> SqsClient:
    return client_at(sqs.url, **options)


def table(received: Sequence[Received]) -> pa.Table:
    """Rows of a segment."""
    return pa.Table.from_batches([build_rows(received)])
