"""Puts the proxy function together: adapters, clock, ids and randomness, from its settings."""

import random
from dataclasses import dataclass

from sluice.aws.clients import dynamodb_client, sqs_client
from sluice.aws.clock import new_id, now_ms
from sluice.aws.queues import SqsQueues
from sluice.aws.rendezvous.event_recorders import Witnesses
from sluice.aws.rendezvous.mailbox_store import DynamoMailboxBook
from sluice.aws.rendezvous.offer_store import DynamoOfferBook
from sluice.aws.rendezvous.proxy_pools import DynamoProxyPools
from sluice.aws.rendezvous.statistics_store import DynamoStatistics
from sluice.rendezvous.event_recorder import Witness
from sluice.rendezvous.http import Site
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.matchmaker import Candidates, Matchmaker
from sluice.rendezvous.ports import OfferBook, ProxyPools, Queues
from sluice.rendezvous.settings import ProxySettings
from sluice.rendezvous.volunteers import Volunteers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyParts:
    """What an environment of the proxy function keeps between its requests."""

    settings: ProxySettings
    book: OfferBook
    pools: ProxyPools
    queues: Queues
    mailbox: Mailbox
    witnesses: Witnesses

    @classmethod
    def make(cls, settings: ProxySettings) -> "ProxyParts":
        """With AWS behind it."""
        queues = SqsQueues(sqs_client(), sibling_url=settings.dead_letters_url)
        mailbox_book = DynamoMailboxBook(dynamodb_client(), settings.table)
        return cls(
            settings=settings,
            book=DynamoOfferBook(dynamodb_client(), settings.table),
            pools=DynamoProxyPools(dynamodb_client(), settings.table),
            queues=queues,
            mailbox=Mailbox(queues, mailbox_book, now_ms, new_id),
            witnesses=Witnesses.make(settings.events, table=settings.table),
        )

    def site(self, witness: Witness) -> Site:
        """For one request."""
        return Site(
            volunteers=self._volunteers(witness),
            clients=self._clients(witness),
            pools=self.pools,
            statistics=DynamoStatistics(dynamodb_client(), self.settings.table, now_ms),
            now_ms=now_ms,
            new_id=new_id,
        )

    def _volunteers(self, witness: Witness) -> Volunteers:
        return Volunteers(
            book=self.book,
            pools=self.pools,
            queues=self.queues,
            mailbox=self.mailbox,
            allowed=self.settings.allowed_relay_pattern,
            held_min=self.settings.held_min,
            held_max=self.settings.held_max,
            now_ms=now_ms,
            new_id=new_id,
            witness=witness,
        )

    def _clients(self, witness: Witness) -> HttpClients:
        matchmaker = Matchmaker(
            book=self.book,
            queues=self.queues,
            candidates=Candidates(self.pools, now_ms, random.random),
            now_ms=now_ms,
        )
        return HttpClients(
            book=self.book,
            matchmaker=matchmaker,
            mailbox=self.mailbox,
            bridges=self.settings.bridges,
            now_ms=now_ms,
            witness=witness,
        )
