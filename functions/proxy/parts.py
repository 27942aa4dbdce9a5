"""Puts the proxy function together: adapters, clock, ids and randomness, from its settings."""

import random
import time

import msgspec

from sluice.aws.clients import dynamodb_client, new_id, now_ms
from sluice.aws.rendezvous.mailboxes import DynamoMailboxStore
from sluice.aws.rendezvous.meeting import Meeting
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.rendezvous.backlog import HeldCounts
from sluice.rendezvous.event_recorder import EventRecorder
from sluice.rendezvous.http import BrokerSite
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.mailbox import PREFIX, Mailbox
from sluice.rendezvous.pacing import Pacing
from sluice.rendezvous.protocol.bridges import by_fingerprint
from sluice.rendezvous.settings import ProxySettings
from sluice.rendezvous.volunteers import PollMetric, Volunteers
from sluice.stages import staged

AT_ONCE = 2  # calls for one offer
# Most polls where many proxies are: told to come again later, and nothing else.
SENT_AWAY = frozenset({PollMetric.DEFERRED, PollMetric.REFUSED})


class ProxyParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the proxy function keeps between its requests."""

    site: BrokerSite
    recorder: EventRecorder
    counts: HeldCounts
    pacing: Pacing

    @classmethod
    def make(cls, settings: ProxySettings) -> "ProxyParts":
        """Put together what the settings ask for, with AWS behind it."""
        meeting = Meeting.of(settings, threads=AT_ONCE)
        mailboxes = DynamoMailboxStore(dynamodb_client(), settings.table)
        prefix = staged(PREFIX, settings.stage)
        mailbox = Mailbox(meeting.queues, mailboxes, now_ms, new_id, time.sleep, prefix)
        volunteers = Volunteers(
            offers=meeting.offers,
            pools=meeting.pools,
            waiting=meeting.waiting,
            queues=meeting.queues,
            mailbox=mailbox,
            pacing=meeting.pacing,
            persistence=meeting.persistence,
            allowed=settings.allowed_relay_pattern,
            held_min=settings.held_proxies_min,
            held_max=settings.held_proxies_max,
            now_ms=now_ms,
            new_id=new_id,
            random=random.random,
            recorder=meeting.recorder,
        )
        clients = HttpClients(
            offers=meeting.offers,
            waiting=meeting.waiting,
            matchmaker=meeting.matchmaker,
            mailbox=mailbox,
            bridges=by_fingerprint(settings.bridges),
            now_ms=now_ms,
            new_id=new_id,
            recorder=meeting.recorder,
        )
        site = BrokerSite(
            volunteers=volunteers,
            clients=clients,
            pools=meeting.pools,
            pacing=meeting.pacing,
            statistics=DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms),
            now_ms=now_ms,
            new_id=new_id,
            trusts_forwarded=settings.trusts_forwarded,
        )
        return cls(
            site=site,
            recorder=meeting.recorder,
            counts=HeldCounts(names=SENT_AWAY, now_ms=now_ms),
            pacing=meeting.pacing,
        )
