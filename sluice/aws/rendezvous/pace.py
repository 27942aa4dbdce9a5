"""Stores counts of polls and offers, and the cooldowns of addresses, in DynamoDB.

pk                sk                 item
pace              minute#<number>    the polls and offers of one minute, numbered since 1970
pace              hour#<number>      for how long polls were held in one hour, and the number of offers
turn#<address>    turn               start and end of an address's cooldown; the address is a hash
turns             <ms>#<environment> cooldowns that one environment publishes to the others, packed
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, query_pages, text, write_if
from sluice.rendezvous.protocol.pace import LATELY_MINUTES, Cooldown, CooldownRow, Counts
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

PACE = "pace"
MINUTE, HOUR = "minute", "hour"
GROUPS = "groups"
TURNS = "turns"
KEPT_S = 10 * 60  # An item expires this long after its last use.
PACKED_TURN = struct.Struct(">8sQI")  # hash of the address, start in milliseconds, duration in milliseconds
ROWS_HEARD = 200  # rows that a new environment reads, each with dozens of cooldowns


class DynamoPaceStore(msgspec.Struct, frozen=True):
    """Stores the counts and cooldowns in one table. Every method may raise `CallFailed`."""

    client: DynamoDBClient
    table: str

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        """Add to the stored counts of this minute and of this hour."""
        self._add(MINUTE, now_ms // MINUTE_MS, minute, until_ms=now_ms + LATELY_MINUTES * MINUTE_MS)
        self._add(HOUR, now_ms // HOUR_MS, hour, until_ms=now_ms + DAY_MS + HOUR_MS)

    def _add(self, unit: str, place: int, counts: Counts, *, until_ms: int) -> None:
        added: dict[str, Any] = attributes(dict(counts.numbers))
        if counts.groups:
            added[GROUPS] = {"NS": [str(group) for group in sorted(counts.groups)]}
        if not added:
            return
        until = attributes({":until": until_ms // 1000 + KEPT_S})
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": PACE, "sk": f"{unit}#{place}"}),
                UpdateExpression="SET expires_at = :until ADD " + ", ".join(f"#{name} :{name}" for name in added),
                ExpressionAttributeNames={f"#{name}": name for name in added},
                ExpressionAttributeValues=until | {f":{name}": value for name, value in added.items()},
            )

    def read_recent_counts(self, *, now_ms: int) -> tuple[Mapping[int, Counts], Mapping[int, Counts]]:
        """Read the counts of the last minutes and of the last day's hours, by their numbers since 1970."""
        minutes = self._since(MINUTE, now_ms // MINUTE_MS - LATELY_MINUTES)
        return minutes, self._since(HOUR, (now_ms - DAY_MS) // HOUR_MS)

    def _since(self, unit: str, place: int) -> Mapping[int, Counts]:
        between = {":since": f"{unit}#{place}", ":until": f"{unit}#{'9' * 20}"}
        pages = query_pages(self.client, self.table, PACE, "sk BETWEEN :since AND :until", between)
        return {int(text(item, "sk").partition("#")[2]): parse_counts(item) for page in pages for item in page}

    def start_cooldown(self, address: str, turn: Cooldown, *, now_ms: int) -> Cooldown | None:
        """Start an address's cooldown. Returns an unfinished earlier one, which still holds, or None if it started."""
        values = {"since": turn.since_ms, "next": turn.next_ms, "expires_at": turn.next_ms // 1000 + KEPT_S}
        item = attributes({"pk": f"turn#{address}", "sk": "turn", **values})
        is_over, names = "attribute_not_exists(pk) OR #next <= :now", {"#next": "next"}  # reserved in DynamoDB
        standing = write_if(self.client, self.table, item, is_over, {":now": now_ms}, ExpressionAttributeNames=names)
        earlier = None if standing is None else Cooldown(number(standing, "since"), number(standing, "next"))
        return None if earlier == turn else earlier  # an equal one is of an earlier attempt

    def publish_cooldowns(self, told: CooldownRow) -> None:
        """Publish cooldowns to other environments in one item, each with 16 digits of the address hash: 20 bytes."""
        until_ms = max(turn.next_ms for turn in told.turns.values())
        sk = f"{told.at_ms:013}#{told.environment}"
        key = attributes({"pk": TURNS, "sk": sk, "expires_at": until_ms // 1000 + KEPT_S})
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item={**key, "turns": {"B": pack_cooldowns(told.turns)}})

    def read_cooldowns(self, *, since_ms: int) -> Sequence[CooldownRow]:
        """Read the last `ROWS_HEARD` rows published since this time, the oldest first (eventually consistent)."""
        with calls("Query"):
            response = self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk AND sk > :since",
                ExpressionAttributeValues=attributes({":pk": TURNS, ":since": f"{max(since_ms, 0):013}"}),
                ScanIndexForward=False,
                Limit=ROWS_HEARD,
            )
        return [parse_row(item) for item in reversed(response["Items"])]


def parse_row(item: Item) -> CooldownRow:
    """Parse the item of one row of cooldowns."""
    at_ms, _, environment = text(item, "sk").partition("#")
    return CooldownRow(environment, int(at_ms), unpack_cooldowns(bytes(item["turns"]["B"])))


def pack_cooldowns(turns: Mapping[str, Cooldown]) -> bytes:
    """Pack cooldowns in 20 bytes each, with the first 16 digits of the address hash."""
    return b"".join(
        PACKED_TURN.pack(bytes.fromhex(address), turn.since_ms, turn.next_ms - turn.since_ms)
        for address, turn in turns.items()
    )


def unpack_cooldowns(packed: bytes) -> Mapping[str, Cooldown]:
    """Unpack cooldowns that `pack_cooldowns` packed."""
    return {
        address.hex(): Cooldown(since_ms, since_ms + rest_ms)
        for address, since_ms, rest_ms in PACKED_TURN.iter_unpack(packed)
    }


def parse_counts(item: Item) -> Counts:
    """Parse the item with the counts of a minute or an hour."""
    numbers = {name: number(item, name) for name in item.keys() - {"pk", "sk", "expires_at", GROUPS}}
    return Counts(numbers, frozenset(map(int, item.get(GROUPS, {}).get("NS", ()))))
