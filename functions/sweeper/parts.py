"""Puts the sweeper function together: adapters and clock, from its settings."""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, now_ms, sqs_client
from sluice.aws.queues import SqsQueues
from sluice.aws.rendezvous.stores import DynamoMailboxStore, DynamoOfferStore
from sluice.rendezvous.settings import TableSettings
from sluice.rendezvous.sweeper import Sweeper


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperParts:
    """What an environment of the sweeper function keeps between its sweeps."""

    settings: TableSettings
    executor: Executor

    @classmethod
    def make(cls, settings: TableSettings) -> "SweeperParts":
        """Put together what the settings ask for, with AWS behind it."""
        return cls(settings=settings, executor=ThreadPoolExecutor(MAX_CONNECTIONS))

    def sweeper(self, *, may_go_on: Callable[[], bool]) -> Sweeper:
        """Make one for one sweep."""
        return Sweeper(
            offers=DynamoOfferStore(dynamodb_client(), self.settings.table),
            mailboxes=DynamoMailboxStore(dynamodb_client(), self.settings.table),
            queues=SqsQueues(sqs_client(), sibling_url=self.settings.dead_letters_url),
            executor=self.executor,
            now_ms=now_ms,
            may_go_on=may_go_on,
        )
