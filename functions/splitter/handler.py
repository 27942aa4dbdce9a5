"""Splits source queues: SQS events in, partial batch responses out. Who gets what is in sluice.splitting."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec.structs import replace

from functions.bootstrap import ask, make_reporter, read_settings
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, now_s, sqs_client
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.aws.splitting.queues import S3Metadata, SplitQueues
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.errors import DestinationFault
from sluice.message import Message
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import StopSession
from sluice.splitting.routing.routed import EVENT, lines
from sluice.splitting.settings import SplitConfig, SplitterSettings
from sluice.splitting.splitter import CachedRegistry, SessionCircuitBreaker, SplitOutcome, split

SERVICE = "splitter"
# Receivers may be gone for a while: at two minutes a receive, this is twenty of them.
MAX_RECEIVES = 10

logger = Logger()


class SplitterDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment keeps between its batches. `by_source` is by the source queue's name."""

    by_source: Mapping[str, SplitConfig]
    store: DynamoRegistryStore
    seen: CachedRegistry
    queues: SplitQueues
    metadata: S3Metadata
    circuit_breaker: SessionCircuitBreaker
    reporter: Reporter

    def split(self, messages: Sequence[Message], queue: SplitConfig) -> SplitOutcome:
        """Forward a batch, and count what sessions got."""
        began_s = now_s()
        routes = self.seen.routes(queue.queue_id)
        outcome = split(
            messages,
            replace(queue, main=self.seen.main(queue.queue_id, configured=queue.main)),
            routes,
            send=self.queues.send_batch,
            executor=self.reporter.executor,
            metadata=self.metadata,
            circuit_breaker=self.circuit_breaker,
            began_s=began_s,
        )
        try:
            for session_id, number in outcome.forwarded.items():
                self.store.count(session_id, number, at_ms=now_ms())
        except DestinationFault:
            # The messages are where they belong: for a count they are not sent again.
            logger.exception("OutcomeNotTold")
        return outcome


@cache
def dependencies() -> SplitterDependencies:
    """Make what this environment keeps, at its first call."""
    settings = read_settings(SplitterSettings)
    store, jq = DynamoRegistryStore(dynamodb_client(), settings.table), JqRunner()
    return SplitterDependencies(
        by_source=settings.by_source,
        store=store,
        seen=CachedRegistry(store, splitter_id=new_id(), decide=lambda: jq, now_ms=now_ms, ready=jq.ready),
        queues=SplitQueues(sqs_client(), settings.dead_letters_url),
        metadata=S3Metadata(),
        circuit_breaker=SessionCircuitBreaker(now_s=now_s, tell=partial(cancel, settings.control_queue_url)),
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(MAX_CONNECTIONS)),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Split a batch: the records of one event are of one source queue."""
    batch = Batch.parse(event)
    queue = dependencies().by_source[batch.queue]
    outcome = dependencies().split(batch.messages, queue)
    publish(SERVICE, outcome.counts, dimensions={"queue": queue.queue_id})
    for line in lines(outcome.routed) if outcome.routed else ():
        logger.info(EVENT, queue=queue.queue_id, routed=line)
    for session_id, number in outcome.forwarded.items():
        dimensions = {"queue": queue.queue_id, "session": session_id}
        publish(SERVICE, {"SessionMessages": number}, dimensions=dimensions)
    return dependencies().reporter.report(batch, outcome.failures, max_receives=MAX_RECEIVES)


def cancel(control_queue_url: str, session_id: str, reason: str) -> None:
    """Have the control function end a session. What isn't heard there is told again by a later batch."""
    logger.warning("SessionCancelled", session=session_id, reason=reason)
    try:
        ask(control_queue_url, StopSession(session_id=session_id, reason=reason))
    except DestinationFault:
        logger.exception("CancellationNotTold")
