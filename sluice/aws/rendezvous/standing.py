"""How the rendezvous stands: who waits, how the latest offers ended, and what queues hold."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.aws.rendezvous.waiting import DynamoProxyPools
from sluice.rendezvous.operations import RECENT_MS, QueueDepth
from sluice.rendezvous.ports import OfferState
from sluice.rendezvous.protocol.matching import Pool

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient


def waiting_proxies(pools: DynamoProxyPools, *, shards: int, now_ms: int) -> Mapping[Pool, int]:
    """Count who waits. Raises `CallFailed`."""
    return {pool: len(pools.profiles(pool, now_ms=now_ms, shards=shards)) for pool in Pool}


def recent_offers(offers: DynamoOfferStore, *, now_ms: int) -> Mapping[OfferState, int]:
    """Count the offers of the last two minutes by how they ended. Raises `CallFailed`."""
    pages = offers.sent_before(now_ms + 1)
    states = Counter(offer.state for page in pages for offer in page if offer.sent_at_ms > now_ms - RECENT_MS)
    return {state: states[state] for state in OfferState}


def depth_of(sqs: "SQSClient", url: str) -> QueueDepth:
    """Count what a queue holds now. Raises `CallFailed`."""
    with calls("GetQueueAttributes"):
        found = sqs.get_queue_attributes(
            QueueUrl=url,
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]
    return QueueDepth(
        visible=int(found["ApproximateNumberOfMessages"]),
        in_flight=int(found["ApproximateNumberOfMessagesNotVisible"]),
    )
