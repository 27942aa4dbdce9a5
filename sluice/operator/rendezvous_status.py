"""How the rendezvous of a site stands: what its queues hold, who waits, and how the latest offers ended."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls, now_ms
from sluice.aws.connections import Connection
from sluice.aws.deployment import Deployment, read_deployment
from sluice.aws.items import Item, attributes, number, text
from sluice.aws.queues import depth_of
from sluice.aws.records import MAX_RECEIVES
from sluice.aws.rendezvous.offers import SHARDS, DynamoOfferStore, DynamoProxyPools, offer_record, read_each
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.codec import plain
from sluice.operations import QueueDepth
from sluice.operator.dead_letters import looked_at, queue_of
from sluice.rendezvous.counts.stream import OFFERS_PREFIX
from sluice.rendezvous.operations import RendezvousView
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import pace_of

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient


MAX_LETTERS = 10
A_SHARD = 25  # offers that are read of each
NO_REASON = f"moved here by SQS: received {MAX_RECEIVES} times and never deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentDeath:
    """Why a message ended here. `source` is the name of the queue where it failed, empty where nobody says."""

    sent_at_ms: int
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousStatus:
    """All of it at one time, and where it is. `latest_dead_letters` has at most ten, the newest first."""

    region: str
    deployment: Deployment
    offers_queue: QueueDepth
    dead_letters: int
    latest_dead_letters: Sequence[RecentDeath]
    waiting: Mapping[Pool, int]
    recent_offers: Mapping[str, int]  # by state


def read_status(connection: Connection) -> RendezvousStatus:
    """Look, and change nothing but the receive counts of the dead letters looked at.

    Raises `NotUsable` where nothing is deployed, `CallFailed` where AWS refuses.
    """
    deployment, at_ms = read_deployment(connection), now_ms()
    sqs: SQSClient = connection.client("sqs")
    dynamodb: DynamoDBClient = connection.client("dynamodb")
    dead_letters = depth_of(sqs, deployment.dead_letters_url)
    pools = DynamoProxyPools(dynamodb, deployment.waiting_table_name, random.random)
    minutes, hours = DynamoPaceStore(dynamodb, deployment.waiting_table_name).lately(now_ms=at_ms)
    shards = pace_of(minutes, hours, now_ms=at_ms).shards
    return RendezvousStatus(
        region=connection.region,
        deployment=deployment,
        offers_queue=depth_of(sqs, deployment.offers_queue_url),
        dead_letters=dead_letters.visible + dead_letters.in_flight,
        latest_dead_letters=_latest_deaths(sqs, deployment.dead_letters_url),
        waiting=pools.count(now_ms=at_ms, shards=shards),
        recent_offers=DynamoOfferStore(dynamodb, deployment.table_name).recent_states(now_ms=at_ms),
    )


def status_of(found: RendezvousView, deployment: Deployment, *, region: str) -> RendezvousStatus:
    """Tell it of what the site's sweeper has found, where dead letters are counted and none is received."""
    dead_letters = found.held[deployment.dead_letters_url]
    return RendezvousStatus(
        region=region,
        deployment=deployment,
        offers_queue=found.held[deployment.offers_queue_url],
        dead_letters=dead_letters.visible + dead_letters.in_flight,
        latest_dead_letters=(),
        waiting=found.waiting,
        recent_offers=found.recent_offers,
    )


def document(rendezvous: RendezvousStatus) -> dict[str, Any]:
    """Write it for `--json`."""
    deployment = rendezvous.deployment
    return {
        "region": rendezvous.region,
        "broker_url": deployment.broker_url,
        "offers_queue": {"url": deployment.offers_queue_url, **plain(rendezvous.offers_queue)},
        "waiting_proxies": dict(rendezvous.waiting),
        "recent_offers": dict(rendezvous.recent_offers),
        "dead_letters": {
            "url": deployment.dead_letters_url,
            "count": rendezvous.dead_letters,
            "latest": [asdict(letter) for letter in rendezvous.latest_dead_letters],
        },
    }


def _latest_deaths(sqs: "SQSClient", url: str) -> list[RecentDeath]:
    """Look at some of the dead letters: SQS chooses which. They stay there for whoever comes to deal with them."""
    deaths = [
        RecentDeath(
            sent_at_ms=letter.message.sent_at_ms or 0, reason=letter.reason or NO_REASON, source=queue_of(letter)
        )
        for letter in looked_at(sqs, url, most=MAX_LETTERS)
    ]
    return sorted(deaths, key=lambda death: death.sent_at_ms, reverse=True)


# The latest offers, as the site's table has them until they are swept: without addresses, and without clients


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
