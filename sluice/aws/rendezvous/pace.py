"""Stores counts of polls and offers, and the cooldowns of addresses, in DynamoDB.

pk                sk                 item
pace              minute#<number>    how many polled and offered in a minute, counted since 1970
pace              hour#<number>      how long polls were held in an hour, and how many offered
turn#<address>    turn               when an address was let in, and when it will be again; the address is a hash
turns             <ms>#<environment> what an environment tells the others of its addresses' turns, packed
"""

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, text, write_if
from sluice.rendezvous.protocol.pace import LATELY_MINUTES, Cooldown, CooldownRow, Counts
from sluice.times import DAY_MS, HOUR_MS, MINUTE_MS

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

PACE = "pace"
MINUTE, HOUR = "minute", "hour"
GROUPS = "groups"
TURNS = "turns"
KEPT_S = 10 * 60  # after they matter no more
PACKED_TURN = struct.Struct(">8sQI")  # address; since when, and for how many milliseconds
ROWS_HEARD = 200  # of some dozens of turns each: what a new environment hears of the others


class DynamoPaceStore(msgspec.Struct, frozen=True):
    """The counts and turns in one table, through a client. Every method may raise `CallFailed`."""

    client: "DynamoDBClient"
    table: str

    def add(self, minute: Counts, hour: Counts, *, now_ms: int) -> None:
        """Add to the counts of this minute and of this hour."""
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
        with calls("Query"):
            response = self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk AND sk BETWEEN :since AND :until",
                ExpressionAttributeValues=attributes(
                    {":pk": PACE, ":since": f"{unit}#{place}", ":until": f"{unit}#{'9' * 20}"}
                ),
            )
        return {int(text(item, "sk").partition("#")[2]): parse_counts(item) for item in response["Items"]}

    def start_cooldown(self, address: str, turn: Cooldown, *, now_ms: int) -> Cooldown | None:
        """Begin an address's turn; the one that isn't over yet where there is one, and None where ours has begun."""
        values = {"since": turn.since_ms, "next": turn.next_ms, "expires_at": turn.next_ms // 1000 + KEPT_S}
        item = attributes({"pk": f"turn#{address}", "sk": "turn", **values})
        is_over, names = "attribute_not_exists(pk) OR #next <= :now", {"#next": "next"}  # a reserved word
        standing = write_if(self.client, self.table, item, is_over, {":now": now_ms}, ExpressionAttributeNames=names)
        earlier = None if standing is None else Cooldown(number(standing, "since"), number(standing, "next"))
        return None if earlier == turn else earlier  # ours was written by an attempt whose answer was lost

    def publish_cooldowns(self, told: CooldownRow) -> None:
        """Tell other environments of turns, by the first 16 digits of an address: one item, of 20 bytes a turn."""
        until_ms = max(turn.next_ms for turn in told.turns.values())
        sk = f"{told.at_ms:013}#{told.environment}"
        key = attributes({"pk": TURNS, "sk": sk, "expires_at": until_ms // 1000 + KEPT_S})
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item={**key, "turns": {"B": pack_cooldowns(told.turns)}})

    def read_cooldowns(self, *, since_ms: int) -> Sequence[CooldownRow]:
        """Read the last rows told since then, `ROWS_HEARD` at most, the oldest first (eventually consistent)."""
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
    """Read a row of turns."""
    at_ms, _, environment = text(item, "sk").partition("#")
    return CooldownRow(environment, int(at_ms), unpack_cooldowns(bytes(item["turns"]["B"])))


def pack_cooldowns(turns: Mapping[str, Cooldown]) -> bytes:
    """Pack turns by the first 16 digits of an address, in 20 bytes each."""
    return b"".join(
        PACKED_TURN.pack(bytes.fromhex(address), turn.since_ms, turn.next_ms - turn.since_ms)
        for address, turn in turns.items()
    )


def unpack_cooldowns(packed: bytes) -> Mapping[str, Cooldown]:
    """Read what `packed_turns` wrote."""
    return {
        address.hex(): Cooldown(since_ms, since_ms + rest_ms)
        for address, since_ms, rest_ms in PACKED_TURN.iter_unpack(packed)
    }


def parse_counts(item: Item) -> Counts:
    """Read the counts of a minute or an hour."""
    numbers = {name: number(item, name) for name in item.keys() - {"pk", "sk", "expires_at", GROUPS}}
    return Counts(numbers, frozenset(map(int, item.get(GROUPS, {}).get("NS", ()))))
