"""Routes the messages of SQS events, and returns those that failed. `sluice.federation` has the logic."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import make_reporter, read_settings, send_operation
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.documents import EXCHANGES, PEERS, DynamoDocument
from sluice.aws.metrics import publish
from sluice.aws.queues import QueuesByUrl
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.errors import CallFailed, DestinationFault
from sluice.federation.links.peers import KNOWN_PEERS, KnownPeers
from sluice.federation.matching.bindings import CachedReplica, RoutingTable
from sluice.federation.operations import MAX_REPORTED_QUEUES, ReportGone
from sluice.federation.router import AbsentQueues, route
from sluice.federation.settings import ExchangeSettings
from sluice.federation.stored import CachedDocument

SERVICE = "exchange"
MAX_RECEIVES = 10  # several, because a bound queue may refuse messages temporarily
SAMPLED_DROPS = 3  # dropped messages that are logged per batch; the metric counts all of them

logger = Logger()


class ExchangeDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment of the exchange function keeps between batches."""

    settings: ExchangeSettings
    table: CachedReplica[RoutingTable]
    peers: CachedDocument[KnownPeers]
    queues: QueuesByUrl
    reporter: Reporter
    absent: AbsentQueues


@cache
def dependencies() -> ExchangeDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(ExchangeSettings)
    log = DynamoChangeLog(client=dynamodb_client(), table=settings.table, name=EXCHANGES, new_token=new_id)
    known = DynamoDocument(client=dynamodb_client(), table=settings.table, name=PEERS, new_token=new_id)

    def peers(content: bytes | None) -> KnownPeers:
        return KnownPeers({} if content is None else KNOWN_PEERS.unpack(content), settings.peer_role_id)

    return ExchangeDependencies(
        settings=settings,
        table=CachedReplica(log, RoutingTable, now_ms),
        peers=CachedDocument(known, peers, now_ms),
        queues=QueuesByUrl(sqs_client()),
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(MAX_CONNECTIONS)),
        absent=AbsentQueues(),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Route an event's messages, which are all from one ingress queue."""
    made, batch = dependencies(), Batch.parse(event)
    outcome = route(
        batch.messages,
        made.settings.ingresses[batch.queue],
        made.table.value(),
        site=made.settings.site,
        peers=made.peers.value,
        now_ms=now_ms(),
        send=made.queues.send_batch,
        executor=made.reporter.executor,
        absent=made.absent,
    )
    publish(SERVICE, outcome.counts)
    for reason, number in Counter(drop.reason for drop in outcome.drops).items():
        publish(SERVICE, {"MessagesDropped": number}, dimensions={"reason": reason})
    for drop in outcome.drops[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, queue=drop.queue)
    failures: dict[int, Exception] = dict(outcome.failures)
    for copy in outcome.undeliverable:
        try:
            made.reporter.dead_letter_copy(batch, copy.position, copy.outgoing, queue=copy.queue, reason=copy.reason)
        except CallFailed as fault:
            failures[copy.position] = fault
    # The links function is told which queues are missing, and how many copies became dead letters for each.
    copies = [(url.rsplit("/", 1)[1], number) for url, number in outcome.absent.items()]
    for start in range(0, len(copies), MAX_REPORTED_QUEUES):
        said = ReportGone(copies=dict(copies[start : start + MAX_REPORTED_QUEUES]))
        try:
            send_operation(made.settings.ticks_queue_url, said)
        except DestinationFault:
            logger.exception("AbsenceNotReported", queues=sorted(said.copies))
    return made.reporter.report(batch, failures, max_receives=MAX_RECEIVES)
