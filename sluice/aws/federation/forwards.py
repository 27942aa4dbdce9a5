"""When each bridge last forwarded something: item (`forwards`, bridge), outside of the registry's versions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import attributes, number, query_pages, text

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

FORWARDS = "forwards"
KEPT_S = 30 * 24 * 60 * 60


class Forwards(msgspec.Struct, frozen=True):
    """In one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def note(self, bridge: str, *, at_ms: int) -> None:
        """Note that the bridge has forwarded."""
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table,
                Item=attributes({"pk": FORWARDS, "sk": bridge, "at": at_ms, "expires_at": at_ms // 1000 + KEPT_S}),
            )

    def last(self) -> Mapping[str, int]:
        """By bridge, ms since 1970; the last minute may be missing some seconds."""
        pages = query_pages(
            self.client,
            TableName=self.table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues=attributes({":pk": FORWARDS}),
        )
        return {text(item, "sk"): number(item, "at") for page in pages for item in page}
