"""A harsh cloud's tables: what has expired stays for a while, and reads may miss what was just written."""

import time
from typing import Any

import pytest

from sluice.aws.connections import Connection
from tests.harsh.conftest import eventually

KEY = {"pk": {"S": "expired"}}


@pytest.fixture
def table(account: Connection) -> dict[str, Any]:
    dynamodb = account.client("dynamodb")
    made: dict[str, Any] = dynamodb.create_table(
        TableName="table",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )["TableDescription"]
    dynamodb.update_time_to_live(
        TableName="table", TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires_at"}
    )
    return made


def test_reads_return_an_expired_item_until_it_is_removed(account: Connection, table: dict[str, Any]) -> None:
    dynamodb = account.client("dynamodb")
    dynamodb.put_item(TableName="table", Item={"pk": {"S": "later"}, "expires_at": {"N": str(int(time.time()) + 999)}})
    dynamodb.put_item(TableName="table", Item={"pk": {"S": "no number"}, "expires_at": {"S": "1"}})

    def is_read() -> bool:
        dynamodb.put_item(TableName="table", Item=KEY | {"expires_at": {"N": str(int(time.time()) - 1)}})
        read = dynamodb.get_item(TableName="table", Key=KEY, ConsistentRead=True).get("Item")
        found = dynamodb.scan(TableName="table", ConsistentRead=True)["Count"]
        return read is not None and read["pk"] == {"S": "expired"} and found == 3

    eventually(is_read)  # the second time, if the item was removed between the requests
    eventually(lambda: "Item" not in dynamodb.get_item(TableName="table", Key=KEY, ConsistentRead=True))
    assert {item["pk"]["S"] for item in dynamodb.scan(TableName="table", ConsistentRead=True)["Items"]} == {
        "later",
        "no number",
    }
    removal = records(account, table["LatestStreamArn"])[-1]
    assert (removal["eventName"], removal["dynamodb"]["Keys"]) == ("REMOVE", KEY)
    assert removal["userIdentity"] == {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}


def test_a_read_that_is_not_consistent_misses_the_last_changes(account: Connection) -> None:
    dynamodb = account.client("dynamodb")
    names = [{"AttributeName": "pk", "AttributeType": "S"}]
    keys = [{"AttributeName": "pk", "KeyType": "HASH"}]
    dynamodb.create_table(TableName="read", KeySchema=keys, AttributeDefinitions=names, BillingMode="PAY_PER_REQUEST")
    key, query = (
        {"pk": {"S": "one"}},
        {"KeyConditionExpression": "pk = :pk", "ExpressionAttributeValues": {":pk": {"S": "one"}}},
    )

    def read(*, consistent: bool) -> list[Any]:
        """What each way of reading finds, of one item at most."""
        options = {"TableName": "read", "ConsistentRead": consistent}
        item = dynamodb.get_item(Key=key, **options).get("Item")
        return [[item] if item else [], dynamodb.query(**query, **options)["Items"], dynamodb.scan(**options)["Items"]]

    old, new = key | {"is": {"S": "old"}}, key | {"is": {"S": "new"}}
    dynamodb.put_item(TableName="read", Item=old)
    eventually(lambda: read(consistent=False) == [[old]] * 3)
    dynamodb.put_item(TableName="read", Item=new)
    assert read(consistent=False) == [[old]] * 3
    assert read(consistent=True) == [[new]] * 3
    eventually(lambda: read(consistent=False) == [[new]] * 3)
    dynamodb.delete_item(TableName="read", Key=key)
    assert read(consistent=False) == [[new]] * 3
    assert read(consistent=True) == [[]] * 3
    eventually(lambda: read(consistent=False) == [[]] * 3)


def records(account: Connection, stream: str) -> list[Any]:
    streams = account.client("dynamodbstreams")
    [shard] = streams.describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]
    iterator = streams.get_shard_iterator(StreamArn=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    found: list[Any] = streams.get_records(ShardIterator=iterator)["Records"]
    return found
