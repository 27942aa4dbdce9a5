"""A partition of the simulated DynamoDB gives what AWS's gives, and the models have their limits from one place."""

from typing import Any

import pytest

from benchmarks.quotas import quota
from benchmarks.units import READ, WRITE
from sluice.federation.links.links import MAX_CREDIT
from tests.simulation.kernel.faults import CALM
from tests.simulation.kernel.world import World
from tests.simulation.models import capacity, queues
from tests.simulation.models.errors import ServiceError
from tests.sqs import queues as memory

TABLE = "table"
THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture
def world() -> World:
    made = World(1, CALM)
    made.dynamodb.make_table(TABLE)
    return made


def item(pk: str, number: int, *, size: int = 1) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": str(number)}, "value": {"S": "x" * size}}


def test_a_partition_takes_so_many_writes_in_a_second_and_another_has_its_own(world: World) -> None:
    for number in range(quota("partition_writes")):
        world.dynamodb.put_item(TableName=TABLE, Item=item("hot", number))
    with pytest.raises(ServiceError, match="partition hot") as refused:
        world.dynamodb.put_item(TableName=TABLE, Item=item("hot", -1))
    assert refused.value.code == THROTTLED
    world.dynamodb.put_item(TableName=TABLE, Item=item("cold", 0))
    world.scheduler.now += 1
    world.dynamodb.put_item(TableName=TABLE, Item=item("hot", -1))


def test_a_partition_gives_so_many_reads_in_a_second(world: World) -> None:
    key = {"pk": {"S": "hot"}, "sk": {"S": "0"}}
    for _ in range(2 * quota("partition_reads")):  # eventually consistent reads take half a unit
        world.dynamodb.get_item(TableName=TABLE, Key=key)
    with pytest.raises(ServiceError, match="partition hot"):
        world.dynamodb.get_item(TableName=TABLE, Key=key)


def test_what_a_busy_partition_does_not_take_of_a_batch_is_given_back(world: World) -> None:
    for number in range(quota("partition_writes") - 1):
        world.dynamodb.put_item(TableName=TABLE, Item=item("hot", number))
    requests = [{"PutRequest": {"Item": item("hot", -number)}} for number in (1, 2)]
    answer = world.dynamodb.batch_write_item(RequestItems={TABLE: requests})
    assert answer["UnprocessedItems"] == {TABLE: requests[1:]}


@pytest.mark.parametrize(("size", "units"), [(1, 1), (1_024, 2), (5_000, 5)])
def test_a_write_takes_a_unit_a_kilobyte_and_a_transaction_two(world: World, size: int, units: int) -> None:
    taken: list[float] = []
    world.dynamodb.capacity.meters.append(lambda _, __, units: taken.append(units))
    put: dict[str, Any] = {"TableName": TABLE, "Item": item("a", 1, size=size)}
    world.dynamodb.put_item(**put)
    assert sum(taken) == units
    taken.clear()
    world.dynamodb.transact_write_items(TransactItems=[{"Put": put}], ClientRequestToken="token")
    assert sum(taken) == 2 * units


def test_a_condition_that_fails_is_a_write_too(world: World) -> None:
    taken: list[str] = []
    world.dynamodb.capacity.meters.append(lambda _, kind, __: taken.append(kind))
    with pytest.raises(ServiceError):
        world.dynamodb.put_item(TableName=TABLE, Item=item("a", 1), ConditionExpression="attribute_exists(pk)")
    assert taken == [WRITE]


def test_the_models_have_aws_quotas() -> None:
    assert capacity.OF_A_SECOND == {WRITE: 1_000, READ: 3_000}
    assert {WRITE: quota("partition_writes"), READ: quota("partition_reads")} == capacity.OF_A_SECOND
    assert MAX_CREDIT == quota("in_flight") == queues.IN_FLIGHT_LIMIT == memory.IN_FLIGHT_LIMIT == 120_000
    assert quota("batch_messages") == memory.BATCH_LIMIT == 10
