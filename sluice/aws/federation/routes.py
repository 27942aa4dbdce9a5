"""Stores route data that the bridge function's environments share, outside of the registry's versions.

When it last forwarded something is item (`forwards`, bridge). When it may send again is item (`rates`, bridge): a batch
takes its messages' time of the route's, from the end of what was taken before, or from now on. So of any time no more
goes over than the rate lets through in it, and one batch: an hour without messages gives nobody a burst.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, attributes, number, query_pages, standing_item, text
from sluice.errors import CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

FORWARDS = "forwards"
NOTE_KEPT_S = 30 * 24 * 60 * 60
RATES = "rates"
MAX_WAIT_MS = 5_000  # until a turn begins: the bridge function has thirty seconds
MAX_RACES = 10
RATE_KEPT_S = 60 * 60
SECOND_US = 1_000_000
_IN_LINE = "SET next_us = next_us + :cost, expires_at = :expires_at", "next_us > :now AND next_us <= :latest"
_AT_ONCE = "SET next_us = :end, expires_at = :expires_at", "attribute_not_exists(pk) OR next_us <= :now"


class Forwards(msgspec.Struct, frozen=True):
    """In one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def note(self, bridge: str, *, at_ms: int) -> None:
        """Note that the bridge has forwarded."""
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table,
                Item=attributes({"pk": FORWARDS, "sk": bridge, "at": at_ms, "expires_at": at_ms // 1000 + NOTE_KEPT_S}),
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


class RouteRates(msgspec.Struct, frozen=True):
    """In one table, through a client. Microseconds, as a rate may be thousands."""

    client: "DynamoDBClient"
    table: str

    def turn_ms(self, bridge: str, *, messages: int, rate: int, now_ms: int) -> int | None:
        """Take the time of so many messages; ms since 1970 when it begins, None where that would be too late.

        Raises `CallFailed`.
        """
        cost, now = -(-messages * SECOND_US // rate), now_ms * 1_000
        for race in range(2 * MAX_RACES):
            expression, condition = (_IN_LINE, _AT_ONCE)[race % 2]
            known = {":now": now, ":expires_at": now_ms // 1000 + RATE_KEPT_S}
            if race % 2:
                known |= {":end": now + cost}
            else:
                known |= {":cost": cost, ":latest": now + MAX_WAIT_MS * 1_000}
            try:
                with calls("UpdateItem"):
                    taken = self.client.update_item(
                        TableName=self.table,
                        Key=attributes({"pk": RATES, "sk": bridge}),
                        UpdateExpression=expression,
                        ConditionExpression=condition,
                        ExpressionAttributeValues=attributes(known),
                        ReturnValues="ALL_NEW",
                        ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    )
            except CallFailed as error:
                if error.code != CONDITION_FAILED:
                    raise
                standing = standing_item(error)
                if standing is not None and number(standing, "next_us") > now + MAX_WAIT_MS * 1_000:
                    return None
                continue
            return -(-(number(taken["Attributes"], "next_us") - cost) // 1_000)
        return None
