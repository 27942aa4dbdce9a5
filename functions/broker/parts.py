"""Puts the broker function together: adapters, clock and randomness, from its settings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from sluice.aws.clients import dynamodb_client, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.aws.rendezvous.event_publisher import recorder_for
from sluice.aws.rendezvous.stores import DynamoOfferStore, DynamoProxyPools
from sluice.rendezvous.broker import Broker, Matchmaker, TickArmer, TimeoutTick
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.protocol.bridges import by_fingerprint
from sluice.rendezvous.settings import BrokerSettings
from sluice.rendezvous.timeouts import TimeOuts

BATCH = 10  # records of an event, each served in a thread of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What an environment of the broker function keeps between its batches. `matchmaker` makes one for a batch."""

    timeouts_queue_name: str  # which of the function's two queues has the ticks
    broker: Broker
    matchmaker: Callable[[], Matchmaker]
    time_outs: TimeOuts
    recorder: EventRecorder
    reporter: Reporter

    @classmethod
    def make(cls, settings: BrokerSettings) -> "BrokerParts":
        """Put together what the settings ask for, with AWS behind it."""
        queues = SqsQueues(sqs_client(), sibling_url=settings.timeouts_queue_url)
        store = DynamoOfferStore(dynamodb_client(), settings.table)
        pools = DynamoProxyPools(dynamodb_client(), settings.table)
        recorder = recorder_for(settings.events, table=settings.table)

        def send_tick(tick: TimeoutTick, delay_s: int) -> None:
            queues.send(settings.timeouts_queue_url, tick.body(), delay_s=delay_s)

        return cls(
            timeouts_queue_name=settings.timeouts_queue_url.rsplit("/", 1)[1],
            broker=Broker(
                offers=store,
                queues=queues,
                armer=TickArmer(send_tick, now_ms),
                bridges=by_fingerprint(settings.bridges),
                now_ms=now_ms,
                recorder=recorder,
            ),
            matchmaker=partial(
                Matchmaker, offers=store, pools=pools, queues=queues, now_ms=now_ms, random=random.random
            ),
            time_outs=TimeOuts(offers=store, queues=queues, send_tick=send_tick, now_ms=now_ms, recorder=recorder),
            recorder=recorder,
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=ThreadPoolExecutor(BATCH),
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )
