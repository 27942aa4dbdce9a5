"""Puts the exchange function together: adapters and clock, from its settings."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import msgspec
from aws_lambda_powertools.logging import Logger

from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import EXCHANGES, PEERS, DynamoDocument
from sluice.aws.queues import QueuesByUrl, ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.codec import encode
from sluice.errors import DestinationFault
from sluice.federation.followed import Followed, SeenReplica
from sluice.federation.links.peers import KnownPeers
from sluice.federation.matching.routing import RoutingTable
from sluice.federation.operations import MAX_REPORTED, ReportGone
from sluice.federation.peer_store import peers_in
from sluice.federation.router import AbsentQueues, Ingress, RoutingOutcome, route
from sluice.federation.seen import Seen
from sluice.federation.settings import ExchangeSettings
from sluice.message import Message

logger = Logger()


class ExchangeParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the exchange function keeps between its batches."""

    settings: ExchangeSettings
    table: SeenReplica[RoutingTable]
    peers: Seen[KnownPeers]
    queues: QueuesByUrl
    ticks: SqsQueues
    reporter: Reporter
    executor: Executor
    absent: AbsentQueues = msgspec.field(default_factory=AbsentQueues)

    @classmethod
    def make(cls, settings: ExchangeSettings) -> "ExchangeParts":
        """With AWS behind it."""
        log = DynamoChangeLog(client=dynamodb_client(), table=settings.table, name=EXCHANGES, new_token=new_id)
        known = DynamoDocument(client=dynamodb_client(), table=settings.table, name=PEERS, new_token=new_id)

        def peers(content: bytes | None) -> KnownPeers:
            return KnownPeers(peers_in(content), settings.peer_role_id)

        executor = ThreadPoolExecutor(MAX_CONNECTIONS)
        return cls(
            settings=settings,
            table=SeenReplica(Followed(log, RoutingTable), now_ms),
            peers=Seen(known, peers, now_ms),
            queues=QueuesByUrl(sqs_client()),
            executor=executor,
            ticks=SqsQueues(sqs_client(), settings.ticks_queue_url),
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=executor,
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
        )

    def ingress(self, queue: str) -> Ingress:
        """Give the ingress queue with this name."""
        return self.settings.ingresses[queue]

    def route(self, messages: Sequence[Message], ingress: Ingress) -> RoutingOutcome:
        """Send a batch to the queues that are bound."""
        return route(
            messages,
            ingress,
            self.table.value(),
            site=self.settings.site,
            peers=self.peers.value,
            now_ms=now_ms(),
            queues=self.queues,
            executor=self.executor,
            absent=self.absent,
        )

    def tell(self, absent: Mapping[str, int]) -> None:
        """Tell the links function which queues don't exist, by URL, and how many copies are dead letters so."""
        copies = [(url.rsplit("/", 1)[1], number) for url, number in absent.items()]
        for start in range(0, len(copies), MAX_REPORTED):
            said = ReportGone(copies=dict(copies[start : start + MAX_REPORTED]))
            try:
                self.ticks.send(self.settings.ticks_queue_url, encode(said).decode())
            except DestinationFault:
                logger.exception("AbsenceNotTold", queues=sorted(said.copies))
