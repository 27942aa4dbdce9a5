"""DynamoDB items: how the table's rows spell strings and numbers, and how a query is read page by page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.errors import CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

Item = Mapping[str, Any]
BATCH_WRITE_LIMIT = 25
MAX_UNPROCESSED_ROUNDS = 8


def attribute(value: str | int) -> dict[str, str]:
    """A string or a number as DynamoDB takes it."""
    return {"N": str(value)} if isinstance(value, int) else {"S": value}


def attributes(values: Mapping[str, str | int]) -> dict[str, dict[str, str]]:
    """An item, or the values of an expression."""
    return {name: attribute(value) for name, value in values.items()}


def text(item: Item, name: str) -> str:
    """A string attribute; empty where absent."""
    value: str = item.get(name, {}).get("S", "")
    return value


def number(item: Item, name: str) -> int:
    """A whole number attribute; 0 where absent."""
    return int(item.get(name, {}).get("N", "0"))


def query_pages(client: "DynamoDBClient", **query: Any) -> Iterator[list[Item]]:
    """A query's items, page by page; the next page is asked for when the last one has been dealt with."""
    pages = iter(client.get_paginator("query").paginate(**query))
    while True:
        with calls("Query"):
            page = next(pages, None)
        if page is None:
            return
        yield list(page["Items"])


def delete_all(client: "DynamoDBClient", table: str, keys: Sequence[Item]) -> None:
    """Deletes items by key, 25 a request. Raises `CallFailed` where the table keeps refusing some."""
    for start in range(0, len(keys), BATCH_WRITE_LIMIT):
        requests: dict[str, Any] = {
            table: [{"DeleteRequest": {"Key": key}} for key in keys[start : start + BATCH_WRITE_LIMIT]]
        }
        for _ in range(MAX_UNPROCESSED_ROUNDS):
            with calls("BatchWriteItem"):
                requests = dict(client.batch_write_item(RequestItems=requests)["UnprocessedItems"])
            if not requests:
                break
        else:
            raise CallFailed("BatchWriteItem", "UnprocessedItems", f"{len(requests[table])} items left")
