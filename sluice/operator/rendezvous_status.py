"""Reads the status of a site's rendezvous: queue depths, waiting proxies, and outcomes of the latest offers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.aws.client_types import DynamoDBClient, SQSClient
from sluice.aws.clients import now_ms
from sluice.aws.connections import Connection
from sluice.aws.deployment import Deployment, read_deployment
from sluice.aws.items import Item, number, query_pages, text
from sluice.aws.queues import count_messages
from sluice.aws.records import MAX_RECEIVES
from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools, parse_items, parse_offer_record
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.codec import to_document
from sluice.operations import QueueDepth
from sluice.operator.dead_letters import find_source_name, peek_dead_letters
from sluice.rendezvous.counts.stream import OFFERS_PREFIX
from sluice.rendezvous.operations import RendezvousView
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import compute_pace

MAX_DEAD_LETTERS = 10
OFFERS_PER_SHARD = 25
NO_REASON = f"moved here by SQS: received {MAX_RECEIVES} times and never deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentDeadLetter:
    """A dead letter with its reason. `source` names the queue where the message failed; empty if not recorded."""

    sent_at_ms: int
    reason: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousStatus:
    """The state of a site's rendezvous. `latest_dead_letters` has at most ten dead letters, the newest first."""

    region: str
    deployment: Deployment
    offers_queue: QueueDepth
    dead_letters: int
    latest_dead_letters: Sequence[RecentDeadLetter]
    waiting: Mapping[Pool, int]
    recent_offers: Mapping[str, int]  # the number of recent offers in each state


def read_status(connection: Connection) -> RendezvousStatus:
    """Read the status of the rendezvous. As a side effect, the receive counts of the listed dead letters increase.

    Raises `NotUsable` if nothing is deployed, and `CallFailed` if AWS refuses a call.
    """
    deployment, at_ms = read_deployment(connection), now_ms()
    sqs: SQSClient = connection.client("sqs")
    dynamodb: DynamoDBClient = connection.client("dynamodb")
    dead_letters = count_messages(sqs, deployment.dead_letters_url)
    pools = DynamoProxyPools(dynamodb, deployment.waiting_table_name, random.random)
    minutes, hours = DynamoPaceStore(dynamodb, deployment.waiting_table_name).read_recent_counts(now_ms=at_ms)
    shards = compute_pace(minutes, hours, now_ms=at_ms).shards
    # SQS decides which dead letters it returns. All dead letters stay in the queue.
    latest = [
        RecentDeadLetter(
            sent_at_ms=letter.message.sent_at_ms or 0,
            reason=letter.reason or NO_REASON,
            source=find_source_name(letter),
        )
        for letter in peek_dead_letters(sqs, deployment.dead_letters_url, most=MAX_DEAD_LETTERS)
    ]
    return RendezvousStatus(
        region=connection.region,
        deployment=deployment,
        offers_queue=count_messages(sqs, deployment.offers_queue_url),
        dead_letters=dead_letters.visible + dead_letters.in_flight,
        latest_dead_letters=sorted(latest, key=lambda letter: letter.sent_at_ms, reverse=True),
        waiting=pools.count(now_ms=at_ms, shards=shards),
        recent_offers=DynamoOfferStore(dynamodb, deployment.table_name).count_recent_states(now_ms=at_ms),
    )


def build_status(view: RendezvousView, deployment: Deployment, *, region: str) -> RendezvousStatus:
    """Build the status from the sweeper function's response, which counts dead letters without receiving them."""
    dead_letters = view.depths[deployment.dead_letters_url]
    return RendezvousStatus(
        region=region,
        deployment=deployment,
        offers_queue=view.depths[deployment.offers_queue_url],
        dead_letters=dead_letters.visible + dead_letters.in_flight,
        latest_dead_letters=(),
        waiting=view.waiting,
        recent_offers=view.recent_offers,
    )


def format_status(rendezvous: RendezvousStatus) -> dict[str, Any]:
    """Format the status of the rendezvous for `--json`."""
    deployment = rendezvous.deployment
    return {
        "region": rendezvous.region,
        "broker_url": deployment.broker_url,
        "client_url": deployment.client_url,
        "offers_queue": {"url": deployment.offers_queue_url, **to_document(rendezvous.offers_queue)},
        "waiting_proxies": dict(rendezvous.waiting),
        "recent_offers": dict(rendezvous.recent_offers),
        "dead_letters": {
            "url": deployment.dead_letters_url,
            "count": rendezvous.dead_letters,
            "latest": [asdict(letter) for letter in rendezvous.latest_dead_letters],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestOffer:
    """A recent offer. `answered_ms` is the time until its answer, None without an answer. Addresses are left out."""

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


def read_shard_offers(client: DynamoDBClient, table: str, shard: int) -> Sequence[LatestOffer]:
    """Read the latest offers of one shard of the DynamoDB table, with one request. Raises `CallFailed`."""
    newest = query_pages(client, table, f"{OFFERS_PREFIX}{shard}", ScanIndexForward=False, Limit=OFFERS_PER_SHARD)
    return list(parse_items(next(newest, []), _parse_latest_offer))


def _parse_latest_offer(item: Item) -> LatestOffer:
    offer = parse_offer_record(item)
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
