"""Serves the offers that clients send over SQS. `sluice.rendezvous` has the logic."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec.structs import replace

from functions.bootstrap import flush_at_shutdown, make_reporter, read_settings
from sluice.aws.dead_letters import OFFER_PLACEHOLDER
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.aws.rendezvous.dependencies import make_dependencies
from sluice.message import Message
from sluice.rendezvous.broker import CLIENT_ID, Broker
from sluice.rendezvous.protocol.ends import End
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, index_by_fingerprint
from sluice.rendezvous.settings import BrokerSettings
from sluice.stages import add_stage_prefix

SERVICE = "broker"
BATCH_SIZE = 10  # The event source mapping delivers at most ten offers per event. Each offer gets its own thread.
CONCURRENT_CALLS = 3  # Serving one offer makes at most three AWS calls at the same time.
# A failed offer is stale when SQS redelivers it. Then only the client's queue is recorded, for the sweeper.
OFFER_MAX_RECEIVES = 4


@cache
def dependencies() -> tuple[Broker, Reporter]:
    """Create the function's dependencies at the first call. Later calls return the same objects."""
    settings = read_settings(BrokerSettings)
    broker = Broker(
        site=make_dependencies(settings, threads=BATCH_SIZE * CONCURRENT_CALLS),
        bridges=index_by_fingerprint(settings.bridges),
        answer_prefix=add_stage_prefix(ANSWER_QUEUE_PREFIX, settings.stage),
    )
    return broker, make_reporter(settings.dead_letters_url, ThreadPoolExecutor(BATCH_SIZE), redact=redact_offer)


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Serve the offers of an SQS event, and report the offers that failed."""
    broker, reporter = dependencies()
    batch = Batch.parse(event)
    ends = broker.serve(batch.messages, executor=reporter.executor)
    failures = {place: error for place, error in enumerate(ends) if isinstance(error, Exception)}
    redelivered_s = broker.list_redeliveries(batch.messages, ends)
    response = reporter.report(batch, failures, max_receives=OFFER_MAX_RECEIVES, redelivered_s=redelivered_s)
    broker.site.pacing.flush_counts()
    publish(SERVICE, Counter(str(end) for end in ends if isinstance(end, End)))
    return response


def redact_offer(message: Message) -> Message:
    """Reduce an offer to its client id and length for the dead-letter queue, as offers contain IP addresses."""
    client_id = {name: value for name, value in message.attributes.items() if name == CLIENT_ID}
    return replace(message, body=OFFER_PLACEHOLDER.format(len(message.body)), attributes=client_id)


publish_buffered = flush_at_shutdown(dependencies, lambda made: made[0].site.pacing.flush_counts(at_shutdown=True))
