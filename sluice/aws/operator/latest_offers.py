"""The latest offers of a site, as its table has them until they are swept: without addresses, and without clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.items import Item, attributes, number, text
from sluice.aws.rendezvous.offers import SHARDS, offer_record, read_each
from sluice.rendezvous.counts.stream import OFFERS_PREFIX

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_dynamodb import DynamoDBClient

A_SHARD = 25  # offers that are read of each


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestOffer:
    """One offer. `answered_ms` is how long its answer took; where it has none that is None, and its proxy unsaid."""

    sent_at_ms: int
    state: str
    method: str
    nat: str
    country: str
    answered_ms: int | None = None
    proxy_type: str = ""
    proxy_nat: str = ""
    proxy_country: str = ""
    trace: str = ""


def latest_offers(client: "DynamoDBClient", table: str) -> Sequence[LatestOffer]:
    """Read the latest offers of each shard, the newest first. Raises `CallFailed`."""
    return newest_first(offers_of_shard(client, table, shard) for shard in range(SHARDS))


def newest_first(shards: Iterable[Sequence[LatestOffer]]) -> Sequence[LatestOffer]:
    """Put together what shards have."""
    return sorted((offer for shard in shards for offer in shard), key=lambda offer: -offer.sent_at_ms)


def offers_of_shard(client: "DynamoDBClient", table: str, shard: int) -> Sequence[LatestOffer]:
    """Read the latest offers of one shard, in one request. Raises `CallFailed`."""
    with calls("Query"):
        items = client.query(
            TableName=table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues=attributes({":pk": f"{OFFERS_PREFIX}{shard}"}),
            ScanIndexForward=False,
            Limit=A_SHARD,
        )["Items"]
    return list(read_each(items, _latest))


def _latest(item: Item) -> LatestOffer:
    offer = offer_record(item)
    answered = "answered_by" in item
    return LatestOffer(
        sent_at_ms=offer.sent_at_ms,
        state=offer.state,
        method=offer.method,
        nat=offer.nat,
        country=offer.country,
        answered_ms=number(item, "ended_at") - offer.sent_at_ms if answered else None,
        proxy_type=text(item, "proxy_type"),
        proxy_nat=text(item, "proxy_nat"),
        proxy_country=text(item, "proxy_country"),
        trace=offer.trace or "",
    )
