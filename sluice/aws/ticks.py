"""Elects the one invocation that schedules a function's next tick."""

import msgspec

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.items import attributes, update_if

TICKS = "ticks"


class Ticks(msgspec.Struct, frozen=True):
    """Stores when the pending tick of one function is due, in the item (`ticks`, `name`) of a table."""

    client: DynamoDBClient
    table: str
    name: str

    def claim(self, *, due_at_ms: int, now_ms: int) -> bool:
        """Claim a tick due at `due_at_ms`. Returns True if the caller must schedule it, False if one is pending."""
        claimed = update_if(
            self.client,
            TableName=self.table,
            Key=attributes({"pk": TICKS, "sk": self.name}),
            UpdateExpression="SET due_at = :due_at",
            ConditionExpression="attribute_not_exists(pk) OR due_at <= :now OR due_at > :due_at",
            ExpressionAttributeValues=attributes({":due_at": due_at_ms, ":now": now_ms}),
        )
        return claimed is not None
