"""Stores route data that the bridge function's environments share, outside of the registry's versions.

Item (`forwards`, bridge) has the time of a bridge's last forward. Item (`rates`, bridge) has the time when a bridge may
send again: each batch reserves time for its messages, starting when the last reservation ends, or now. So a route
exceeds its rate by at most one batch in any period, and an idle hour allows no burst.
"""

from collections.abc import Mapping

import msgspec

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, attributes, get_conflicting_item, number, query_pages, text
from sluice.errors import CallFailed

FORWARDS = "forwards"
NOTE_KEPT_S = 30 * 24 * 60 * 60
RATES = "rates"
MAX_WAIT_MS = 5_000  # A batch waits at most this long for its turn, because the bridge function times out after 30 s.
MAX_RACES = 10
RATE_KEPT_S = 60 * 60
SECOND_US = 1_000_000
_IN_LINE = "SET next_us = next_us + :cost, expires_at = :expires_at", "next_us > :now AND next_us <= :latest"
_AT_ONCE = "SET next_us = :end, expires_at = :expires_at", "attribute_not_exists(pk) OR next_us <= :now"


class ForwardTimes(msgspec.Struct, frozen=True):
    """Stores the times of bridges' last forwards in a DynamoDB table."""

    client: DynamoDBClient
    table: str

    def record(self, bridge: str, *, at_ms: int) -> None:
        """Record the time at which a bridge forwarded messages."""
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table,
                Item=attributes({"pk": FORWARDS, "sk": bridge, "at": at_ms, "expires_at": at_ms // 1000 + NOTE_KEPT_S}),
            )

    def read_all(self) -> Mapping[str, int]:
        """Return the time of each bridge's last forward, in ms since the epoch. A time may be some seconds old."""
        pages = query_pages(self.client, self.table, FORWARDS)
        return {text(item, "sk"): number(item, "at") for page in pages for item in page}


class RouteRates(msgspec.Struct, frozen=True):
    """Stores bridges' reserved sending times in a DynamoDB table, in µs, as a rate may be thousands a second."""

    client: DynamoDBClient
    table: str

    def reserve_ms(self, bridge: str, *, messages: int, rate: int, now_ms: int) -> int | None:
        """Reserve time for a number of messages.

        Returns its start in ms since the epoch; None if the wait would be too long. Raises `CallFailed`.
        """
        cost, now = -(-messages * SECOND_US // rate), now_ms * 1_000
        for race in range(2 * MAX_RACES):
            expression, condition = (_IN_LINE, _AT_ONCE)[race % 2]
            values = {":end": now + cost} if race % 2 else {":cost": cost, ":latest": now + MAX_WAIT_MS * 1_000}
            values |= {":now": now, ":expires_at": now_ms // 1000 + RATE_KEPT_S}
            try:
                with calls("UpdateItem"):
                    taken = self.client.update_item(
                        TableName=self.table,
                        Key=attributes({"pk": RATES, "sk": bridge}),
                        UpdateExpression=expression,
                        ConditionExpression=condition,
                        ExpressionAttributeValues=attributes(values),
                        ReturnValues="ALL_NEW",
                        ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    )
            except CallFailed as error:
                if error.code != CONDITION_FAILED:
                    raise
                standing = get_conflicting_item(error)
                if standing is not None and number(standing, "next_us") > now + MAX_WAIT_MS * 1_000:
                    return None
                continue
            return -(-(number(taken["Attributes"], "next_us") - cost) // 1_000)
        return None
