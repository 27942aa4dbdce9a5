"""Splits messages of source queues among sessions, and reports failed ones. `sluice.splitting` has the logic."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec.structs import replace

from functions.bootstrap import make_reporter, read_settings, send_operation
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, now_s, sqs_client
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.aws.splitting.queues import S3Metadata, SplitQueues
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.errors import DestinationFault
from sluice.message import Message
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import StopSession
from sluice.splitting.routing.routed import EVENT, format_lines
from sluice.splitting.settings import SplitConfig, SplitterSettings
from sluice.splitting.splitter import CachedRegistry, SessionCircuitBreaker, SplitOutcome, split

SERVICE = "splitter"
# A session's queue may be missing for some time. Ten receives, two minutes apart, give it twenty minutes.
MAX_RECEIVES = 10

logger = Logger()


class SplitterDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches of an execution environment. `by_source` has split queues by their source queue's name."""

    by_source: Mapping[str, SplitConfig]
    store: DynamoRegistryStore
    registry: CachedRegistry
    queues: SplitQueues
    metadata: S3Metadata
    circuit_breaker: SessionCircuitBreaker
    reporter: Reporter

    def split(self, messages: Sequence[Message], queue: SplitConfig) -> SplitOutcome:
        """Split a batch among sessions and the main queue, and count each session's messages."""
        began_s = now_s()
        routes = self.registry.load_routes(queue.queue_id)
        outcome = split(
            messages,
            replace(queue, main=self.registry.find_main_queue(queue.queue_id, configured=queue.main)),
            routes,
            send=self.queues.send_batch,
            executor=self.reporter.executor,
            metadata=self.metadata,
            circuit_breaker=self.circuit_breaker,
            began_s=began_s,
        )
        try:
            for session_id, number in outcome.forwarded.items():
                self.store.add_count(session_id, number, at_ms=now_ms())
        except DestinationFault:
            # The messages are already delivered. A failed count must not cause their redelivery.
            logger.exception("OutcomeNotReported")
        return outcome


@cache
def dependencies() -> SplitterDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(SplitterSettings)
    store, jq = DynamoRegistryStore(dynamodb_client(), settings.table), JqRunner()
    return SplitterDependencies(
        by_source=settings.by_source,
        store=store,
        registry=CachedRegistry(
            store, splitter_id=new_id(), decide=lambda: jq, now_ms=now_ms, ensure_started=jq.ensure_started
        ),
        queues=SplitQueues(sqs_client(), settings.dead_letters_url),
        metadata=S3Metadata(),
        circuit_breaker=SessionCircuitBreaker(
            clock_s=now_s, cancel=partial(cancel_session, settings.control_queue_url)
        ),
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(MAX_CONNECTIONS)),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Split an event's messages, which are all from one source queue."""
    batch = Batch.parse(event)
    queue = dependencies().by_source[batch.queue]
    outcome = dependencies().split(batch.messages, queue)
    publish(SERVICE, outcome.counts, dimensions={"queue": queue.queue_id})
    for line in format_lines(outcome.routed) if outcome.routed else ():
        logger.info(EVENT, queue=queue.queue_id, routed=line)
    for session_id, number in outcome.forwarded.items():
        dimensions = {"queue": queue.queue_id, "session": session_id}
        publish(SERVICE, {"SessionMessages": number}, dimensions=dimensions)
    return dependencies().reporter.report(batch, outcome.failures, max_receives=MAX_RECEIVES)


def cancel_session(control_queue_url: str, session_id: str, reason: str) -> None:
    """Ask the control function to stop a session. If this request isn't delivered, a later batch repeats it."""
    logger.warning("SessionCancelled", session=session_id, reason=reason)
    try:
        send_operation(control_queue_url, StopSession(session_id=session_id, reason=reason))
    except DestinationFault:
        logger.exception("CancellationNotSent")
