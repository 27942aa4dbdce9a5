"""Puts the rendezvous together for a function: adapters, clock, ids and randomness, from its settings."""

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, sqs_client
from sluice.aws.mailbox_book import DynamoMailboxBook
from sluice.aws.offer_book import DynamoOfferBook
from sluice.aws.proxy_pools import DynamoProxyPools
from sluice.aws.queues import SqsQueues
from sluice.aws.records import DeadLetters
from sluice.rendezvous.broker import Broker
from sluice.rendezvous.http import Site
from sluice.rendezvous.http_clients import HttpClients
from sluice.rendezvous.mailbox import Mailbox
from sluice.rendezvous.matchmaker import Candidates, Matchmaker
from sluice.rendezvous.ports import OfferBook, ProxyPools, Queues
from sluice.rendezvous.sweeper import Sweeper
from sluice.rendezvous.timeouts import Tick, TickArmer, TimeOuts
from sluice.rendezvous.volunteers import Volunteers
from sluice.settings import BrokerSettings, ProxySettings, SweeperSettings

BATCH = 10  # records of an event, each served in a thread of its own


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """32 hex characters that nobody else draws."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What an environment of the broker function keeps between its batches."""

    settings: BrokerSettings
    book: OfferBook
    pools: ProxyPools
    queues: Queues
    dead_letters: DeadLetters
    executor: Executor
    armer: TickArmer

    @classmethod
    def make(cls, settings: BrokerSettings) -> "BrokerParts":
        """With AWS behind it."""
        queues = SqsQueues(sqs_client(), sibling_url=settings.timeouts_queue_url)
        return cls(
            settings=settings,
            book=DynamoOfferBook(dynamodb_client(), settings.table),
            pools=DynamoProxyPools(dynamodb_client(), settings.table),
            queues=queues,
            dead_letters=DeadLetters(client=sqs_client(), url=settings.dead_letters_url),
            executor=ThreadPoolExecutor(BATCH),
            armer=TickArmer(_tick_sender(queues, settings.timeouts_queue_url), now_ms),
        )

    @property
    def timeouts_queue_name(self) -> str:
        """Which of the function's two queues has the ticks."""
        return self.settings.timeouts_queue_url.rsplit("/", 1)[1]

    def broker(self) -> Broker:
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
        )

    def time_outs(self) -> TimeOuts:
        """For one batch of ticks."""
        return TimeOuts(
            book=self.book,
            queues=self.queues,
            send_tick=_tick_sender(self.queues, self.settings.timeouts_queue_url),
            now_ms=now_ms,
        )


def _tick_sender(queues: Queues, url: str) -> Callable[[Tick, int], None]:
    return lambda tick, delay_s: queues.send(url, tick.body(), delay_s=delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteParts:
    """What an environment of the proxy function keeps between its requests."""

    settings: ProxySettings
    book: OfferBook
    pools: ProxyPools
    queues: Queues
    mailbox: Mailbox

    @classmethod
    def make(cls, settings: ProxySettings) -> "SiteParts":
        """With AWS behind it."""
        queues = SqsQueues(sqs_client(), sibling_url=settings.dead_letters_url)
        mailbox_book = DynamoMailboxBook(dynamodb_client(), settings.table)
        return cls(
            settings=settings,
            book=DynamoOfferBook(dynamodb_client(), settings.table),
            pools=DynamoProxyPools(dynamodb_client(), settings.table),
            queues=queues,
            mailbox=Mailbox(queues, mailbox_book, now_ms, new_id),
        )

    def site(self) -> Site:
        """For one request."""
        return Site(
            volunteers=self._volunteers(), clients=self._clients(), pools=self.pools, now_ms=now_ms, new_id=new_id
        )

    def _volunteers(self) -> Volunteers:
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
        )

    def _clients(self) -> HttpClients:
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweeperParts:
    """What an environment of the sweeper function keeps between its sweeps."""

    settings: SweeperSettings
    executor: Executor

    @classmethod
    def make(cls, settings: SweeperSettings) -> "SweeperParts":
        """With AWS behind it."""
        return cls(settings=settings, executor=ThreadPoolExecutor(MAX_CONNECTIONS))

    def sweeper(self, *, may_go_on: Callable[[], bool]) -> Sweeper:
        """For one sweep."""
        return Sweeper(
            offers=DynamoOfferBook(dynamodb_client(), self.settings.table),
            mailboxes=DynamoMailboxBook(dynamodb_client(), self.settings.table),
            queues=SqsQueues(sqs_client(), sibling_url=self.settings.dead_letters_url),
            executor=self.executor,
            now_ms=now_ms,
            may_go_on=may_go_on,
        )
