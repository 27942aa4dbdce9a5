"""Builds the dependencies of the rendezvous functions from their settings: stores, queues, pacing, the recorder."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from aws_lambda_powertools.logging import Logger

from sluice.aws.clients import long_polling_sqs_client, new_id, now_ms, quick_dynamodb_client, quick_sqs_client
from sluice.aws.queues import SqsQueues
from sluice.aws.rendezvous.address_keys import AddressHasher
from sluice.aws.rendezvous.event_publisher import TableEventPublisher, get_events_client
from sluice.aws.rendezvous.offers import DynamoOfferStore, DynamoProxyPools
from sluice.aws.rendezvous.pace import DynamoPaceStore
from sluice.aws.rendezvous.waiting import DynamoWaitingOffers
from sluice.rendezvous.broker import RendezvousDependencies
from sluice.rendezvous.event_recorder import Countries, EventRecorder
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.settings import RendezvousSettings

BUNDLE = Path(__file__).parents[3]  # This is the root of the deployed bundle, which contains `geoip_file`.
TRACE_VARIABLE = "_X_AMZN_TRACE_ID"  # Lambda sets this variable to the invocation's trace header.

logger = Logger()


def make_dependencies(
    settings: RendezvousSettings, *, threads: int, buffered_metrics: frozenset[str] = frozenset()
) -> RendezvousDependencies:
    """Create the objects that an execution environment keeps between invocations.

    `threads` is the number of concurrent calls for offers. Without event settings, countries aren't looked up and
    events are discarded. `EventRecorder` may delay the metrics named in `buffered_metrics`.
    """
    dynamodb, table, events = quick_dynamodb_client(), settings.waiting_table, settings.events
    publisher, countries = None, None
    if events is not None:
        teller = TableEventPublisher(
            table=settings.table, site=events.site, client=get_events_client, now_ms=now_ms, new_id=new_id
        )
        publisher = teller.publish
        countries = str(BUNDLE / events.geoip_file) if events.geoip_file else None
    return RendezvousDependencies(
        offers=DynamoOfferStore(dynamodb, settings.table),
        pools=DynamoProxyPools(dynamodb, table, random.random),
        waiting=DynamoWaitingOffers(dynamodb, table),
        queues=SqsQueues(quick_sqs_client(), settings.dead_letters_url, long_polling_sqs_client()),
        pacing=Pacing(
            store=DynamoPaceStore(dynamodb, table),
            now_ms=now_ms,
            log=lambda error: logger.warning("PaceNotCounted", reason=str(error)),
        ),
        recorder=EventRecorder(
            look_up_country=Countries(countries).look_up,
            hash_address=AddressHasher(dynamodb, table, now_ms).hash_address,
            trace=partial(os.environ.get, TRACE_VARIABLE),
            now_ms=now_ms,
            new_id=new_id,
            publisher=publisher,
            buffered_metrics=buffered_metrics,
        ),
        executor=ThreadPoolExecutor(threads),
        now_ms=now_ms,
        sleep=time.sleep,
        new_id=new_id,
        random=random.random,
    )
