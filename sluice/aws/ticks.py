"""Elects the one caller that schedules the next tick."""

from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import attributes
from sluice.errors import CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

TICKS = "ticks"
CONDITION_FAILED = "ConditionalCheckFailedException"


class Ticks(msgspec.Struct, frozen=True):
    """One function's tick in a table, item (`ticks`, `name`)."""

    client: "DynamoDBClient"
    table: str
    name: str

    def claim(self, *, due_at_ms: int, now_ms: int) -> bool:
        """Whether the caller is to arm a tick for then; False where one is armed that comes as soon."""
        try:
            with calls("UpdateItem"):
                self.client.update_item(
                    TableName=self.table,
                    Key=attributes({"pk": TICKS, "sk": self.name}),
                    UpdateExpression="SET due_at = :due_at",
                    ConditionExpression="attribute_not_exists(pk) OR due_at <= :now OR due_at > :due_at",
                    ExpressionAttributeValues=attributes({":due_at": due_at_ms, ":now": now_ms}),
                )
        except CallFailed as error:
            if error.code == CONDITION_FAILED:
                return False
            raise
        return True
