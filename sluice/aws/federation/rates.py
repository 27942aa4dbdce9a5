"""When a route may send, of which all environments know one thing: when the next turn begins. Item (`rates`, bridge).

A batch takes its messages' time of the route's, from the end of what was taken before, or from now on. So of any time
no more goes over than the rate lets through in it, and one batch: an hour without messages gives nobody a burst.
"""

from typing import TYPE_CHECKING

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, attributes, number, standing_item
from sluice.errors import CallFailed

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

RATES = "rates"
MAX_WAIT_MS = 5_000  # until a turn begins: the bridge function has thirty seconds
MAX_RACES = 10
KEPT_S = 60 * 60
SECOND_US = 1_000_000
_IN_LINE = "SET next_us = next_us + :cost, expires_at = :expires_at", "next_us > :now AND next_us <= :latest"
_AT_ONCE = "SET next_us = :end, expires_at = :expires_at", "attribute_not_exists(pk) OR next_us <= :now"


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
            known = {":now": now, ":expires_at": now_ms // 1000 + KEPT_S}
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
                there = standing_item(error)
                if there is not None and number(there, "next_us") > now + MAX_WAIT_MS * 1_000:
                    return None
                continue
            return -(-(number(taken["Attributes"], "next_us") - cost) // 1_000)
        return None
