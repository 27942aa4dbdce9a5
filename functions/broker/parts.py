"""Puts the broker function together: adapters, clock and randomness, from its settings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluice.aws.clients import dynamodb_client, sqs_client
from sluice.aws.clock import now_ms
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import SqsQueues
from sluice.aws.records import Reporter
from sluice.aws.rendezvous.event_recorders import Witnesses
from sluice.aws.rendezvous.offer_store import DynamoOfferBook
from sluice.aws.rendezvous.proxy_pools import DynamoProxyPools
from sluice.rendezvous.broker import Broker
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.matchmaker import Candidates, Matchmaker
from sluice.rendezvous.ports import OfferBook, ProxyPools, Queues
from sluice.rendezvous.settings import BrokerSettings
from sluice.rendezvous.timeouts import Tick, TickArmer, TimeOuts

BATCH = 10  # records of an event, each served in a thread of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What an environment of the broker function keeps between its batches."""

    settings: BrokerSettings
    book: OfferBook
    pools: ProxyPools
    queues: Queues
    reporter: Reporter
    armer: TickArmer
    witnesses: Witnesses

    @classmethod
    def make(cls, settings: BrokerSettings) -> "BrokerParts":
        """With AWS behind it."""
        queues = SqsQueues(sqs_client(), sibling_url=settings.timeouts_queue_url)
        return cls(
            settings=settings,
            book=DynamoOfferBook(dynamodb_client(), settings.table),
            pools=DynamoProxyPools(dynamodb_client(), settings.table),
            queues=queues,
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=ThreadPoolExecutor(BATCH),
            ),
            armer=TickArmer(_tick_sender(queues, settings.timeouts_queue_url), now_ms),
            witnesses=Witnesses.make(settings.events, table=settings.table),
        )

    @property
    def timeouts_queue_name(self) -> str:
        """Which of the function's two queues has the ticks."""
        return self.settings.timeouts_queue_url.rsplit("/", 1)[1]

    def broker(self, witness: Witness) -> Broker:
        """For one batch of offers."""
        matchmaker = Matchmaker(
            book=self.book,
            queues=self.queues,
            candidates=Candidates(self.pools, now_ms, random.random),
            now_ms=now_ms,
        )
        return Broker(
            book=self.book,
            queues=self.queues,
            matchmaker=matchmaker,
            armer=self.armer,
            bridges=self.settings.bridges,
            now_ms=now_ms,
            witness=witness,
        )

    def time_outs(self, witness: Witness) -> TimeOuts:
        """For one batch of ticks."""
        return TimeOuts(
            book=self.book,
            queues=self.queues,
            send_tick=_tick_sender(self.queues, self.settings.timeouts_queue_url),
            now_ms=now_ms,
            witness=witness,
        )


def _tick_sender(queues: Queues, url: str) -> Callable[[Tick, int], None]:
    return lambda tick, delay_s: queues.send(url, tick.body(), delay_s=delay_s)
