"""Stores the numbers of polls and offers, and the cooldowns of proxies' addresses, in DynamoDB.

pk                sk                 item pace              minute#<number>    the polls and offers of one minute,
numbered since 1970 pace              hour#<number>      for how long polls were held in one hour, and the number of
offers turn#<address>    turn               the end of an address's cooldown; the address is a hash
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, query_pages, text, write_if
from sluice.rendezvous.protocol.pace import LATELY_MINUTES, Counts
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

PACE = "pace"
MINUTE, HOUR = "minute", "hour"
GROUPS = "groups"
KEPT_S = 10 * 60  # An item expires this long after its last use, but a held poll's cooldown expires when it ends.


class DynamoPaceStore(msgspec.Struct, frozen=True):
    """Stores the counts and cooldowns in one table. Every method may raise `CallFailed`."""

    client: DynamoDBClient
    table: str

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        """Add these counts to the stored counts of this minute and of this hour."""
        self._add_counts(MINUTE, now_ms // MINUTE_MS, minute, until_ms=now_ms + LATELY_MINUTES * MINUTE_MS)
        self._add_counts(HOUR, now_ms // HOUR_MS, hour, until_ms=now_ms + DAY_MS + HOUR_MS)

    def _add_counts(self, unit: str, place: int, counts: Counts, *, until_ms: int) -> None:
        new_counts: dict[str, Any] = attributes(dict(counts.numbers))
        if counts.groups:
            new_counts[GROUPS] = {"NS": [str(group) for group in sorted(counts.groups)]}
        if not new_counts:
            return
        until = attributes({":until": until_ms // 1000 + KEPT_S})
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": PACE, "sk": f"{unit}#{place}"}),
                UpdateExpression="SET expires_at = :until ADD " + ", ".join(f"#{name} :{name}" for name in new_counts),
                ExpressionAttributeNames={f"#{name}": name for name in new_counts},
                ExpressionAttributeValues=until | {f":{name}": value for name, value in new_counts.items()},
            )

    def read_recent_counts(self, *, now_ms: int) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        """Read the counts of the last minutes and of the last day's hours. Keys are minutes and hours since 1970."""
        minutes = self._read_counts_since(MINUTE, now_ms // MINUTE_MS - LATELY_MINUTES)
        return minutes, self._read_counts_since(HOUR, (now_ms - DAY_MS) // HOUR_MS)

    def _read_counts_since(self, unit: str, place: int) -> Mapping[int, Counts]:
        between = {":since": f"{unit}#{place}", ":until": f"{unit}#{'9' * 20}"}
        pages = query_pages(self.client, self.table, PACE, "sk BETWEEN :since AND :until", between)
        return {int(text(item, "sk").partition("#")[2]): parse_counts(item) for page in pages for item in page}

    def has_cooldown(self, address: str, *, now_ms: int) -> bool:
        """Return whether an address has a cooldown whose item hasn't expired, with an eventually consistent read."""
        pages = query_pages(self.client, self.table, f"turn#{address}")
        return any(number(item, "expires_at") * 1000 > now_ms for page in pages for item in page)

    def start_cooldown(
        self, address: str, next_ms: int, *, now_ms: int, after_ms: int | None = None, is_held: bool = False
    ) -> int | None:
        """Start an address's cooldown until `next_ms`. Returns None, or the end of a cooldown that still holds.

        The last cooldown must be over, or, with `after_ms`, end at that time.
        """
        expires_at = next_ms // 1000 + (0 if is_held else KEPT_S)
        item = attributes({"pk": f"turn#{address}", "sk": "turn", "next": next_ms, "expires_at": expires_at})
        condition, values = "attribute_not_exists(pk) OR #next <= :now", {":now": now_ms}
        if after_ms is not None:
            condition, values = "#next = :after", {":after": after_ms}
        names = {"#next": "next"}  # `next` is a reserved word of DynamoDB.
        standing = write_if(self.client, self.table, item, condition, values, ExpressionAttributeNames=names)
        # A cooldown with this end was started by this call, or by an earlier attempt of botocore.
        return None if standing is None or number(standing, "next") == next_ms else number(standing, "next")


def parse_counts(item: Item) -> Counts:
    """Parse the item with the counts of a minute or an hour."""
    numbers = {name: number(item, name) for name in item.keys() - {"pk", "sk", "expires_at", GROUPS}}
    return Counts(numbers, frozenset(map(int, item.get(GROUPS, {}).get("NS", ()))))
