"""Puts the splitter function together: adapters, clock, ids and the jq process, from its settings."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import msgspec
from aws_lambda_powertools.logging import Logger
from msgspec.structs import replace

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, now_s, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.aws.splitting.queues import S3Metadata, SplitQueues
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.codec import encode
from sluice.errors import DestinationFault
from sluice.message import Message
from sluice.splitting.jq_runner import JqRunner
from sluice.splitting.operations import StopSession
from sluice.splitting.settings import SplitConfig, SplitterSettings
from sluice.splitting.splitter import CachedRegistry, Conduct, SplitOutcome, split

logger = Logger()


class SplitterParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the splitter function keeps between its batches."""

    settings: SplitterSettings
    by_source: Mapping[str, SplitConfig]  # by the source queue's name
    store: DynamoRegistryStore
    seen: CachedRegistry
    queues: SplitQueues
    metadata: S3Metadata
    conduct: Conduct
    reporter: Reporter
    executor: Executor

    @classmethod
    def make(cls, settings: SplitterSettings) -> "SplitterParts":
        """With AWS behind it."""
        store = DynamoRegistryStore(dynamodb_client(), settings.table)
        jq = JqRunner()
        executor = ThreadPoolExecutor(MAX_CONNECTIONS)
        return cls(
            settings=settings,
            by_source=settings.by_source,
            store=store,
            seen=CachedRegistry(store, splitter_id=new_id(), decide=lambda: jq, now_ms=now_ms, ready=jq.ready),
            queues=SplitQueues(sqs_client(), settings.dead_letters_url),
            metadata=S3Metadata(),
            conduct=Conduct(now_s=now_s, tell=partial(cancel, settings)),
            executor=executor,
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=executor,
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )

    def split(self, messages: Sequence[Message], queue: SplitConfig) -> SplitOutcome:
        """Forward a batch, and count what sessions got."""
        began_s = now_s()
        routes = self.seen.routes(queue.queue_id)
        outcome = split(
            messages,
            replace(queue, main=self.seen.main(queue.queue_id, configured=queue.main)),
            routes,
            send=self.queues.send_batch,
            executor=self.executor,
            metadata=self.metadata,
            conduct=self.conduct,
            began_s=began_s,
        )
        try:
            for session_id, number in outcome.forwarded.items():
                self.store.count(session_id, number, at_ms=now_ms())
        except DestinationFault:
            # The messages are where they belong: for a count they are not sent again.
            logger.exception("OutcomeNotTold")
        return outcome


def cancel(settings: SplitterSettings, session_id: str, reason: str) -> None:
    """Have the control function end a session. What isn't heard there is told again by a later batch."""
    logger.warning("SessionCancelled", session=session_id, reason=reason)
    try:
        asked = encode(StopSession(session_id=session_id, reason=reason)).decode()
        SqsQueues(sqs_client(), settings.dead_letters_url).send(settings.control_queue_url, asked)
    except DestinationFault:
        logger.exception("CancellationNotTold")
