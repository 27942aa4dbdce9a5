"""Puts the counters function together: adapters and clock, from its settings."""

from concurrent.futures import ThreadPoolExecutor

import msgspec

from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import EXCHANGES
from sluice.aws.federation.publisher import Publisher
from sluice.aws.rendezvous.exchange_publisher import Demand, ExchangePublisher
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.federation.followed import Followed, SeenReplica
from sluice.rendezvous.counting import Counting
from sluice.rendezvous.settings import CountersSettings


class CountersParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the counters function keeps between its batches."""

    counting: Counting
    dead_letters: DeadLetters

    @classmethod
    def make(cls, settings: CountersSettings) -> "CountersParts":
        """Put together what the settings ask for, with AWS behind it."""
        bindings = DynamoChangeLog(
            client=dynamodb_client(), table=settings.federation_table, name=EXCHANGES, new_token=new_id
        )
        demand = SeenReplica(Followed(bindings, Demand), now_ms)
        publisher = ExchangePublisher(
            exchange=settings.exchange,
            site=settings.site,
            publisher=Publisher(settings.ingress_url, sqs_client()),
        )
        executor = ThreadPoolExecutor(MAX_CONNECTIONS)
        return cls(
            counting=Counting(
                statistics=DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms, executor.map),
                is_wanted=lambda: demand.value().reaches(settings.exchange),
                publish=publisher.publish,
            ),
            dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
        )
