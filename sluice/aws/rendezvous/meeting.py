"""What the functions of the rendezvous are put together from: stores, queues, pace and matchmakers, from settings."""

import random
import time
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec
from aws_lambda_powertools.logging import Logger

from sluice.aws.clients import holding_sqs_client, new_id, now_ms, quick_dynamodb_client, quick_sqs_client
from sluice.aws.queues import SqsQueues
from sluice.aws.rendezvous.address_keys import AddressHasher
from sluice.aws.rendezvous.event_publisher import recorder_for
from sluice.aws.rendezvous.offers import DynamoOfferStore
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.aws.rendezvous.waiting import DynamoProxyPools, DynamoWaitingOffers
from sluice.errors import CallFailed
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.matchmaker import Matchmaker
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.persistence import Persistence
from sluice.rendezvous.settings import MeetingSettings

logger = Logger()


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment keeps between its invocations."""

    offers: DynamoOfferStore
    pools: DynamoProxyPools
    waiting: DynamoWaitingOffers
    queues: SqsQueues
    pacing: Pacing
    persistence: Persistence
    recorder: EventRecorder
    executor: Executor  # for what is done side by side for one offer

    @classmethod
    def of(cls, settings: MeetingSettings, *, threads: int) -> "Meeting":
        """Put together what the settings ask for, with AWS behind it."""
        dynamodb, table = quick_dynamodb_client(), settings.waiting_table
        return cls(
            offers=DynamoOfferStore(dynamodb, settings.table),
            pools=DynamoProxyPools(dynamodb, table, random.random),
            waiting=DynamoWaitingOffers(dynamodb, table),
            queues=SqsQueues(quick_sqs_client(), settings.dead_letters_url, holding_sqs_client()),
            pacing=Pacing(environment=new_id(), store=DynamoPaceStore(dynamodb, table), now_ms=now_ms, log=_log),
            persistence=Persistence(now_ms, time.sleep),
            recorder=recorder_for(
                settings.events, table=settings.table, hash_of=AddressHasher(dynamodb, table, now_ms).of
            ),
            executor=ThreadPoolExecutor(threads),
        )

    def matchmaker(self, *, offers_due: int = 1) -> Matchmaker:
        """Make one for the offers of one batch."""
        return Matchmaker(
            offers=self.offers,
            pools=self.pools,
            waiting=self.waiting,
            queues=self.queues,
            pacing=self.pacing,
            persistence=self.persistence,
            executor=self.executor,
            now_ms=now_ms,
            random=random.random,
            offers_due=offers_due,
        )


def _log(error: CallFailed) -> None:
    logger.warning("PaceNotCounted", reason=str(error))
