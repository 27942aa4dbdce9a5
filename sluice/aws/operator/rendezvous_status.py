"""How the rendezvous of a site stands: what its queues hold, who waits, and how the latest offers ended."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.aws.clients import calls, now_ms
from sluice.aws.dead_letters import read
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import Deployment, read_deployment
from sluice.aws.queues import depth_of
from sluice.aws.records import MAX_RECEIVES
from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.message import Message
from sluice.operations import QueueDepth
from sluice.rendezvous.operations import RendezvousView
from sluice.rendezvous.protocol.matching import Pool
from sluice.rendezvous.protocol.pace import pace_of

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient

MAX_LETTERS = 10  # of one receive, by SQS
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
        latest_dead_letters=_peek(sqs, deployment.dead_letters_url),
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


def _peek(sqs: "SQSClient", url: str) -> list[RecentDeath]:
    """Read some of the dead letters: SQS chooses which. They stay visible to whoever comes to deal with them."""
    with calls("ReceiveMessage"):
        received = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=MAX_LETTERS,
            VisibilityTimeout=0,
            WaitTimeSeconds=1,  # a short poll asks only some of SQS's servers and may miss the few that there are
            MessageSystemAttributeNames=["SentTimestamp"],
            MessageAttributeNames=["All"],
        ).get("Messages", [])
    letters = [read(Message.of_api(message)) for message in received]
    deaths = [
        RecentDeath(
            sent_at_ms=letter.message.sent_at_ms or 0,
            reason=letter.reason or NO_REASON,
            source=letter.source.rsplit(":", 1)[-1],
        )
        for letter in letters
    ]
    return sorted(deaths, key=lambda death: death.sent_at_ms, reverse=True)
