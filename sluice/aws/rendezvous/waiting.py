"""Who waits for whom, in DynamoDB: `sluice.rendezvous.ports.ProxyPools` and `WaitingOffers`.

    pk                        sk                          item
    polls#<pool>#<shard>      <address>#<sid>             a proxy whose poll is held open; the address is a hash
    waiting#<pool>#<shard>    <sent_at_ms>#<client_id>    an offer that any proxy of the pool, or of both, may take

The table has no recovery, and what stands in it is gone in minutes: offers name their clients' addresses. It is spread
over as many shards as the demand wants: a poll costs two writes here, an offer that waits two of each of its kilobytes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from sluice.aws.clients import calls
from sluice.aws.items import CONDITION_FAILED, Item, attributes, delete_all, number, put_all, query_pages, text
from sluice.aws.rendezvous.items import milliseconds, read_each, read_profile
from sluice.aws.rendezvous.packing import packed, unpacked
from sluice.errors import CallFailed
from sluice.rendezvous.ports import LeftOffer, OfferRecord, OpenOffer
from sluice.rendezvous.protocol.addresses import UNKNOWN_COUNTRY
from sluice.rendezvous.protocol.matching import PATIENCE_MS, Nat, Pool, Profile, WaitingProxy, fits, waits_until
from sluice.rendezvous.protocol.messages import OfferMethod

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

KEPT_S = 10 * 60  # what nobody takes away who should
DEAD_AFTER_MS = 60_000  # its poll's end: nobody takes it out of its pool any more
ADDRESS_DIGITS = 8  # of a hash: they tell a pool's addresses apart


class DynamoProxyPools(msgspec.Struct, frozen=True):
    """The pools of waiting proxies in one table, through a client. `random` draws in [0, 1)."""

    client: "DynamoDBClient"
    table: str
    random: Callable[[], float]
    _large: set[str] = msgspec.field(default_factory=set)  # partitions that had more than was asked for, when last read

    def enter(self, proxy: WaitingProxy) -> None:
        """Add a proxy to its pool, in the place of an earlier poll of the same Sid."""
        values: dict[str, str | int] = {
            "poll_id": proxy.poll_id,
            "clients": proxy.clients,
            "polled_at": proxy.polled_at_ms,
            "waits_until": proxy.waits_until_ms,
            "mailbox": proxy.mailbox,
            "profile": json.dumps(asdict(proxy.profile)),
            "expires_at": proxy.polled_at_ms // 1000 + KEPT_S,
        }
        with calls("PutItem"):
            self.client.put_item(TableName=self.table, Item=_proxy_key(proxy) | attributes(values))

    def leave(self, proxy: WaitingProxy) -> None:
        """Take a proxy out."""
        try:
            with calls("DeleteItem"):
                self.client.delete_item(
                    TableName=self.table,
                    Key=_proxy_key(proxy),
                    ConditionExpression="poll_id = :poll_id",
                    ExpressionAttributeValues=attributes({":poll_id": proxy.poll_id}),
                )
        except CallFailed as error:
            if error.code != CONDITION_FAILED:
                raise

    def waiting(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = True
    ) -> Sequence[WaitingProxy]:
        """Read some who wait, drawn at random, all where they are no more than `limit`.

        Those who have just come may be missing unless it is `consistent`, which costs twice as much. What it sees of
        those whose time is over it deletes.
        """
        first = int(self.random() * shards)
        found: list[WaitingProxy] = []
        for shard in chain(range(first, shards), range(first)):
            for page in self._pages(f"polls#{pool}#{shard}", limit=limit, consistent=consistent):
                self._delete_dead(page, now_ms=now_ms)
                proxies = read_each(page, waiting_proxy)
                found += [proxy for proxy in proxies if proxy.waits_until_ms > now_ms]
                if len(found) >= limit:
                    return found
        return found

    def _pages(self, partition: str, *, limit: int, consistent: bool) -> Iterator[Sequence[Item]]:
        """Read a partition: at once what is small, and else from a place in it that is drawn, round about."""
        ask = partial(self._page, partition, limit=limit, consistent=consistent)
        if partition not in self._large:
            page, more = ask()
            if not more:
                yield page
                return
        self._large.add(partition)
        start = f"{int(self.random() * 16**ADDRESS_DIGITS):0{ADDRESS_DIGITS}x}"
        for condition in ("sk > :start", "sk <= :start"):
            after: Any = {}
            while after is not None:
                page, after = ask(condition, {":start": start}, after=after)
                yield page
        self._large.discard(partition)  # or there would have been enough

    def _page(
        self,
        partition: str,
        condition: str = "",
        values: dict[str, str | int] | None = None,
        *,
        limit: int,
        consistent: bool,
        after: Any = None,
    ) -> tuple[Sequence[Item], Any]:
        """Read one page, and where the next one begins, or None."""
        start = {"ExclusiveStartKey": after} if after else {}
        with calls("Query"):
            found = self.client.query(
                TableName=self.table,
                ConsistentRead=consistent,
                KeyConditionExpression="pk = :pk" + (f" AND {condition}" if condition else ""),
                ExpressionAttributeValues=attributes({":pk": partition} | (values or {})),
                Limit=limit,
                **start,
            )
        return found["Items"], found.get("LastEvaluatedKey")

    def _delete_dead(self, items: Sequence[Item], *, now_ms: int) -> None:
        dead = [item for item in items if number(item, "waits_until") < now_ms - DEAD_AFTER_MS]
        delete_all(self.client, self.table, [{"pk": item["pk"], "sk": item["sk"]} for item in dead])

    def profiles(self, pool: Pool, *, now_ms: int, shards: int) -> Sequence[Profile]:
        """Read what is known of all who wait (eventually consistent)."""
        pages = (
            page
            for shard in range(shards)
            for page in query_pages(
                self.client,
                TableName=self.table,
                KeyConditionExpression="pk = :pk",
                FilterExpression="waits_until > :now",
                ExpressionAttributeValues=attributes({":pk": f"polls#{pool}#{shard}", ":now": now_ms}),
            )
        )
        return [proxy.profile for page in pages for proxy in read_each(page, waiting_proxy)]


class DynamoWaitingOffers(msgspec.Struct, frozen=True):
    """The offers that wait in one table, through a client."""

    client: "DynamoDBClient"
    table: str

    def put(self, offers: Sequence[OpenOffer]) -> None:
        """Have offers wait."""
        put_all(self.client, self.table, [_waiting_offer(offer) for offer in offers])

    def oldest(
        self, pool: Pool, *, now_ms: int, limit: int, shards: int, consistent: bool = False
    ) -> Sequence[OpenOffer]:
        """Read those that a proxy of this pool may serve, and may still answer, the oldest first.

        Those that no proxy of the other pool may serve come first of all: only then the others are read.
        """
        for fitting in (Pool.UNRESTRICTED, Pool.RESTRICTED) if pool is Pool.UNRESTRICTED else (Pool.RESTRICTED,):
            found: list[OpenOffer] = []
            for shard in range(shards):
                found += self._oldest_of(_partition(fitting, shard), now_ms=now_ms, limit=limit, consistent=consistent)
            if found:
                return sorted(found, key=lambda offer: (offer.record.sent_at_ms, offer.record.client_id))[:limit]
        return []

    def _oldest_of(self, partition: str, *, now_ms: int, limit: int, consistent: bool) -> Sequence[OpenOffer]:
        """Read on past those whose clients hear early that there is nobody: they aren't in the others' way."""
        found: list[OpenOffer] = []
        since = milliseconds(now_ms - waits_until(PATIENCE_MS))  # none waits longer
        for page in query_pages(
            self.client,
            TableName=self.table,
            ConsistentRead=consistent,
            KeyConditionExpression="pk = :pk AND sk > :since",
            ExpressionAttributeValues=attributes({":pk": partition, ":since": since}),
            Limit=limit,
        ):
            found += [offer for offer in read_each(page, open_offer) if offer.waits_until_ms > now_ms]
            if len(found) >= limit:
                break
        return found

    def take(self, offer: OpenOffer) -> bool:
        """Take an offer that waits, which one caller can; False for the others."""
        try:
            with calls("DeleteItem"):
                self.client.delete_item(
                    TableName=self.table, Key=_offer_key(offer), ConditionExpression="attribute_exists(pk)"
                )
        except CallFailed as error:
            if error.code == CONDITION_FAILED:
                return False
            raise
        return True

    def left(self, *, until_ms: int, shards: int) -> Iterator[Sequence[LeftOffer]]:
        """Read those that nobody took and that were sent before, page by page."""
        for pool in Pool:
            for shard in range(shards):
                for page in query_pages(
                    self.client,
                    TableName=self.table,
                    KeyConditionExpression="pk = :pk AND sk < :until",
                    ExpressionAttributeValues=attributes(
                        {":pk": _partition(pool, shard), ":until": milliseconds(until_ms)}
                    ),
                ):
                    yield read_each(page, left_offer)

    def forget(self, offers: Sequence[LeftOffer]) -> None:
        """Delete them."""
        keys = [
            attributes({"pk": each.partition, "sk": f"{milliseconds(each.sent_at_ms)}#{each.client_id}"})
            for each in offers
        ]
        delete_all(self.client, self.table, keys)


def _waiting_offer(offer: OpenOffer) -> Item:
    record = offer.record
    values: dict[str, str | int] = {
        "method": record.method,
        "nat": record.nat,
        "country": record.country,
        "trace": record.trace or "",
        "relay": offer.relay,
        "reply_to": offer.reply_to,
        "answers_until": offer.answers_until_ms,
        "expires_at": record.sent_at_ms // 1000 + KEPT_S,
    }
    return _offer_key(offer) | attributes(values) | {"offer": {"B": packed(offer.offer)}}


def waiting_proxy(item: Item) -> WaitingProxy:
    """Read a proxy's item. Raises KeyError, ValueError or TypeError for what is none."""
    _, pool, shard = item["pk"]["S"].split("#")
    return WaitingProxy(
        poll_id=item["poll_id"]["S"],
        sid=item["sk"]["S"].partition("#")[2],
        pool=Pool(pool),
        clients=number(item, "clients"),
        polled_at_ms=number(item, "polled_at"),
        mailbox=item["mailbox"]["S"],
        profile=read_profile(item),
        shard=int(shard),
    )


def open_offer(item: Item) -> OpenOffer:
    """Read the item of an offer that waits. Raises KeyError, ValueError or TypeError for what is none."""
    sent_at, _, client_id = item["sk"]["S"].partition("#")
    return OpenOffer(
        record=OfferRecord(
            client_id=client_id,
            sent_at_ms=int(sent_at),
            method=OfferMethod(text(item, "method")),
            nat=Nat(text(item, "nat")),
            country=text(item, "country") or UNKNOWN_COUNTRY,
            trace=text(item, "trace") or None,
        ),
        offer=unpacked(item["offer"]["B"]),
        relay=item["relay"]["S"],
        reply_to=item["reply_to"]["S"],
        answers_until_ms=number(item, "answers_until"),
        shard=int(item["pk"]["S"].rpartition("#")[2]),
    )


def left_offer(item: Item) -> LeftOffer:
    """Read the key of an offer that waited. Raises ValueError for what is none."""
    sent_at, _, client_id = text(item, "sk").partition("#")
    return LeftOffer(text(item, "pk"), int(sent_at), client_id)


def _proxy_key(proxy: WaitingProxy) -> dict[str, Any]:
    address = (proxy.profile.address or "")[:ADDRESS_DIGITS]
    return attributes({"pk": f"polls#{proxy.pool}#{proxy.shard}", "sk": f"{address}#{proxy.sid}"})


def _offer_key(offer: OpenOffer) -> dict[str, Any]:
    record = offer.record
    pool = Pool.RESTRICTED if fits(record.nat, Pool.RESTRICTED) else Pool.UNRESTRICTED
    sort_key = f"{milliseconds(record.sent_at_ms)}#{record.client_id}"
    return attributes({"pk": _partition(pool, offer.shard), "sk": sort_key})


def _partition(pool: Pool, shard: int) -> str:
    return f"waiting#{pool}#{shard}"
