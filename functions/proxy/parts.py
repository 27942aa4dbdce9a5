"""Puts the proxy function together: adapters, clock, ids and randomness, from its settings."""

import random
from dataclasses import dataclass
from functools import partial

from sluice.aws.clients import dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.queues import SqsQueues
from sluice.aws.rendezvous.event_publisher import recorder_for
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.aws.rendezvous.stores import DynamoMailboxStore, DynamoOfferStore, DynamoProxyPools
from sluice.rendezvous.broker import Matchmaker
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.http import BrokerSite
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.protocol.bridges import by_fingerprint
from sluice.rendezvous.settings import ProxySettings
from sluice.rendezvous.volunteers import Volunteers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyParts:
    """What an environment of the proxy function keeps between its requests."""

    site: BrokerSite
    recorder: EventRecorder

    @classmethod
    def make(cls, settings: ProxySettings) -> "ProxyParts":
        """Put together what the settings ask for, with AWS behind it."""
        dynamodb, table = dynamodb_client(), settings.table
        queues = SqsQueues(sqs_client(), sibling_url=settings.dead_letters_url)
        store, pools = DynamoOfferStore(dynamodb, table), DynamoProxyPools(dynamodb, table)
        mailbox = Mailbox(queues, DynamoMailboxStore(dynamodb, table), now_ms, new_id)
        recorder = recorder_for(settings.events, table=table)
        volunteers = Volunteers(
            offers=store,
            pools=pools,
            queues=queues,
            mailbox=mailbox,
            allowed=settings.allowed_relay_pattern,
            held_min=settings.held_proxies_min,
            held_max=settings.held_proxies_max,
            now_ms=now_ms,
            new_id=new_id,
            recorder=recorder,
        )
        clients = HttpClients(
            offers=store,
            matchmaker=partial(
                Matchmaker, offers=store, pools=pools, queues=queues, now_ms=now_ms, random=random.random
            ),
            mailbox=mailbox,
            bridges=by_fingerprint(settings.bridges),
            now_ms=now_ms,
            recorder=recorder,
        )
        site = BrokerSite(
            volunteers=volunteers,
            clients=clients,
            pools=pools,
            statistics=DynamoStatisticsStore(dynamodb, table, now_ms),
            now_ms=now_ms,
            new_id=new_id,
        )
        return cls(site=site, recorder=recorder)
