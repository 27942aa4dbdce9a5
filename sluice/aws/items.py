"""DynamoDB items: the encoding of strings and numbers, conditional writes, and paged queries."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.errors import CallFailed

Item = Mapping[str, Any]
BATCH_WRITE_LIMIT = 25
MAX_UNPROCESSED_ROUNDS = 8
# Error codes of DynamoDB, as `CallFailed.code` has them.
CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELED = "TransactionCanceledException"


def attributes(values: Mapping[str, str | int]) -> dict[str, dict[str, str]]:
    """Encode an item, or the values of an expression, in DynamoDB's format for strings and numbers."""
    return {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in values.items()}


def text(item: Item, name: str) -> str:
    """Return a string attribute; "" if the item doesn't have the attribute."""
    value: str = item.get(name, {}).get("S", "")
    return value


def number(item: Item, name: str) -> int:
    """Return an integer attribute; 0 if the item doesn't have the attribute."""
    return int(item.get(name, {}).get("N", "0"))


def get_conflicting_item(error: CallFailed) -> Item | None:
    """Return the item that made a conditional put fail, if the put requested it; None after other errors."""
    cause = error.__cause__
    if isinstance(cause, ClientError) and error.code == CONDITION_FAILED:
        return cause.response.get("Item")  # type: ignore[return-value]  # not in the stub's ClientError response
    return None


def get_item(client: DynamoDBClient, table: str, key: Any, *, consistent: bool = True) -> Item:
    """Read an item; empty if the item doesn't exist. Raises `CallFailed`."""
    with calls("GetItem"):
        return client.get_item(TableName=table, Key=key, ConsistentRead=consistent).get("Item", {})


def write_if(
    client: DynamoDBClient,
    table: str,
    item: Any,
    condition: str,
    values: Mapping[str, str | int] | None = None,
    **request: Any,
) -> Item | None:
    """Write an item if the condition holds, and return None. Else return the existing item. Raises `CallFailed`.

    If the response to a write is lost, the retry fails the condition. Then the existing item is the one that was
    written.
    """
    if values:
        request["ExpressionAttributeValues"] = attributes(values)
    try:
        with calls("PutItem"):
            client.put_item(
                TableName=table,
                Item=item,
                ConditionExpression=condition,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **request,
            )
    except CallFailed as error:
        standing = get_conflicting_item(error)
        if standing is None:
            raise
        return standing
    return None


def update_if(client: DynamoDBClient, **request: Any) -> Item | None:
    """Update an item if a condition holds. Returns the item, None if the condition fails. Raises `CallFailed`."""
    try:
        with calls("UpdateItem"):
            return client.update_item(ReturnValues="ALL_NEW", **request)["Attributes"]
    except CallFailed as error:
        if error.code != CONDITION_FAILED:
            raise
        return None


def delete_if(client: DynamoDBClient, table: str, key: Any, condition: str, values: Any = None) -> bool:
    """Delete an item if the condition holds. Returns False if the condition fails. Raises `CallFailed`."""
    parameters: dict[str, Any] = {"ExpressionAttributeValues": attributes(values)} if values else {}
    try:
        with calls("DeleteItem"):
            client.delete_item(TableName=table, Key=key, ConditionExpression=condition, **parameters)
    except CallFailed as error:
        if error.code != CONDITION_FAILED:
            raise
        return False
    return True


def get_cancellation_codes(error: CallFailed) -> list[str]:
    """Return the error code of each write in a cancelled transaction, in order. A write without an error has "None"."""
    cause = error.__cause__
    response: Any = cause.response if isinstance(cause, ClientError) else {}
    return [reason.get("Code", "None") for reason in response.get("CancellationReasons", [])]


def query_pages(
    client: DynamoDBClient,
    table: str,
    partition: str,
    condition: str = "",
    values: Mapping[str, str | int] | None = None,
    **query: Any,
) -> Iterator[list[Item]]:
    """Yield a partition's items page by page. Each page is requested when the caller has consumed the previous one.

    `condition` selects items by their sort keys. `values` are the values in `condition`, and in a filter in `query`.
    """
    query["KeyConditionExpression"] = f"pk = :pk AND {condition}" if condition else "pk = :pk"
    query["ExpressionAttributeValues"] = attributes({":pk": partition, **(values or {})})
    return _read_pages(client, "Query", TableName=table, **query)


def scan_keys(client: DynamoDBClient, table: str, condition: str, values: Mapping[str, int]) -> Iterator[list[Item]]:
    """Yield the keys of a table's items that match a filter, page by page. Reads the whole table."""
    keys = {"ProjectionExpression": "pk, sk", "ExpressionAttributeValues": attributes(values)}
    return _read_pages(client, "Scan", TableName=table, FilterExpression=condition, **keys)


def _read_pages(client: Any, operation: str, **request: Any) -> Iterator[list[Item]]:
    pages = iter(client.get_paginator(operation.lower()).paginate(**request))
    while True:
        with calls(operation):
            page = next(pages, None)
        if page is None:
            return
        yield list(page["Items"])


def delete_all(client: DynamoDBClient, table: str, keys: Sequence[Item]) -> None:
    """Delete items by key, 25 in each request. Raises `CallFailed` if DynamoDB keeps refusing some of them."""
    _write_all(client, table, [{"DeleteRequest": {"Key": key}} for key in keys])


def write_all(client: DynamoDBClient, table: str, items: Sequence[Item]) -> None:
    """Write items, 25 in each request. Raises `CallFailed` if DynamoDB keeps refusing some of them."""
    _write_all(client, table, [{"PutRequest": {"Item": item}} for item in items])


def _write_all(client: DynamoDBClient, table: str, writes: Sequence[Any]) -> None:
    for start in range(0, len(writes), BATCH_WRITE_LIMIT):
        requests: dict[str, Any] = {table: writes[start : start + BATCH_WRITE_LIMIT]}
        for _ in range(MAX_UNPROCESSED_ROUNDS):
            with calls("BatchWriteItem"):
                requests = dict(client.batch_write_item(RequestItems=requests)["UnprocessedItems"])
            if not requests:
                break
        else:
            raise CallFailed("BatchWriteItem", "UnprocessedItems", f"{len(requests[table])} items left")
