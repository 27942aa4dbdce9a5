"""Puts the counters function together: adapters and clock, from its settings."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues
from sluice.aws.records import Reporter
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.rendezvous.counting import Counting
from sluice.rendezvous.settings import TableSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersParts:
    """What an environment of the counters function keeps between its batches."""

    counting: Counting
    reporter: Reporter

    @classmethod
    def make(cls, settings: TableSettings) -> "CountersParts":
        """Put together what the settings ask for, with AWS behind it."""
        return cls(
            counting=Counting(DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms)),
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=ThreadPoolExecutor(MAX_CONNECTIONS),
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )
