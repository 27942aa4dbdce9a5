"""The pools of waiting proxies in DynamoDB: `sluice.rendezvous.ports.ProxyPools`.

pk                 sk                                          item
waiting#<pool>     <clients>#<polled_at_ms>#<poll_id>          a proxy whose poll is held open
demand#<pool>      <ten seconds>                               how many offers asked for the pool in them
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, text
from sluice.rendezvous.protocol.matching import HOLD_MS, Nat, Pool, Profile, WaitingProxy

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

KEPT_S = 60 * 60  # for what a function that died left behind
MAX_CLIENTS = 999_999  # what a sort key has room for; a proxy that claims more is last anyway


@dataclass(frozen=True, slots=True)
class DynamoProxyPools:
    """The pools in one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def enter(self, proxy: WaitingProxy) -> None:
        """See the port."""
        with calls("PutItem"):
            self.client.put_item(
                TableName=self.table,
                Item=pool_key(proxy)
                | attributes(
                    {
                        "sid": proxy.sid,
                        "mailbox": proxy.mailbox,
                        "waits_until": proxy.waits_until_ms,
                        "profile": json.dumps(asdict(proxy.profile)),
                        "expires_at": proxy.polled_at_ms // 1000 + KEPT_S,
                    }
                ),
            )

    def leave(self, proxy: WaitingProxy) -> bool:
        """See the port."""
        with calls("DeleteItem"):
            deleted = self.client.delete_item(TableName=self.table, Key=pool_key(proxy), ReturnValues="ALL_OLD")
        return bool(deleted.get("Attributes"))

    def waiting(self, pool: Pool, *, limit: int) -> Sequence[WaitingProxy]:
        """See the port."""
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                ConsistentRead=True,
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues=attributes({":pk": _pool_pk(pool)}),
                Limit=limit,
            )
        return [_waiting_proxy(pool, item) for item in found["Items"]]

    def count(self, pool: Pool, *, now_ms: int) -> int:
        """See the port. At most what one page of a query holds, some 5,000: more is enough for any demand."""
        with calls("Query"):
            counted = self.client.query(
                TableName=self.table,
                Select="COUNT",
                KeyConditionExpression="pk = :pk",
                FilterExpression="waits_until > :now",
                ExpressionAttributeValues=attributes({":pk": _pool_pk(pool), ":now": now_ms}),
            )
        return counted["Count"]

    def profiles(self, pool: Pool, *, now_ms: int) -> Sequence[Profile]:
        """See the port. One page, as of `count`."""
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk",
                FilterExpression="waits_until > :now",
                ExpressionAttributeValues=attributes({":pk": _pool_pk(pool), ":now": now_ms}),
            )
        return [_profile(item) for item in found["Items"]]

    def note_offers(self, pool: Pool, number: int, *, now_ms: int) -> None:
        """See the port."""
        with calls("UpdateItem"):
            self.client.update_item(
                TableName=self.table,
                Key=attributes({"pk": _demand_pk(pool), "sk": _slot(now_ms)}),
                UpdateExpression="ADD offers :number SET expires_at = :expires_at",
                ExpressionAttributeValues=attributes({":number": number, ":expires_at": now_ms // 1000 + KEPT_S}),
            )

    def recent_offers(self, pool: Pool, *, now_ms: int) -> int:
        """See the port."""
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                KeyConditionExpression="pk = :pk AND sk >= :since",
                ExpressionAttributeValues=attributes({":pk": _demand_pk(pool), ":since": _slot(now_ms - HOLD_MS)}),
            )
        return max((number(item, "offers") for item in found["Items"]), default=0)


def _pool_pk(pool: Pool) -> str:
    return f"waiting#{pool}"


def _demand_pk(pool: Pool) -> str:
    return f"demand#{pool}"


def _slot(now_ms: int) -> str:
    return f"{now_ms // HOLD_MS:011d}"


def pool_key(proxy: WaitingProxy) -> dict[str, Any]:
    """Where a waiting proxy stands; its place is its order."""
    clients = min(proxy.clients, MAX_CLIENTS)
    return attributes({"pk": _pool_pk(proxy.pool), "sk": f"{clients:06d}#{proxy.polled_at_ms:013d}#{proxy.poll_id}"})


def _waiting_proxy(pool: Pool, item: Item) -> WaitingProxy:
    clients, polled_at_ms, poll_id = text(item, "sk").split("#", 2)
    return WaitingProxy(
        poll_id=poll_id,
        sid=text(item, "sid"),
        pool=pool,
        clients=int(clients),
        polled_at_ms=int(polled_at_ms),
        mailbox=text(item, "mailbox"),
        profile=_profile(item),
    )


def _profile(item: Item) -> Profile:
    known = json.loads(text(item, "profile") or "{}")
    return Profile(**known | {"nat": Nat(known.get("nat", Nat.UNKNOWN))})
