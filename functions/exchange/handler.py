"""Routes the messages of SQS events, and reports which messages failed. `sluice.federation` has the logic."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec import UNSET

from functions.bootstrap import make_reporter, read_settings, send_operation
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import MAX_REASON
from sluice.aws.documents import EXCHANGES, PEERS, DynamoDocument
from sluice.aws.metrics import publish
from sluice.aws.queues import send_batch
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.batches import Send
from sluice.errors import CallFailed, DestinationFault, describe_reason
from sluice.federation.links.peers import KNOWN_PEERS, KnownPeers
from sluice.federation.matching.bindings import CachedReplica, RoutingTable
from sluice.federation.operations import MAX_REPORTED_QUEUES, ReportFailingQueues
from sluice.federation.router import FailingQueues, route
from sluice.federation.settings import ExchangeSettings
from sluice.federation.stored import CachedDocument

SERVICE = "exchange"
MAX_RECEIVES = 10  # A message is received up to ten times, because a bound queue may refuse messages temporarily.
SAMPLED_DROPS = 3  # At most this many dropped messages of a batch are logged. The metric counts all of them.

logger = Logger()


class ExchangeDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment of the exchange function keeps between batches."""

    settings: ExchangeSettings
    table: CachedReplica[RoutingTable]
    peers: CachedDocument[KnownPeers]
    send: Send
    reporter: Reporter
    failing_queues: FailingQueues


@cache
def dependencies() -> ExchangeDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(ExchangeSettings)
    log = DynamoChangeLog(client=dynamodb_client(), table=settings.table, name=EXCHANGES, new_token=new_id)
    known = DynamoDocument(client=dynamodb_client(), table=settings.table, name=PEERS, new_token=new_id)

    def decode_peers(content: bytes | None) -> KnownPeers:
        return KnownPeers({} if content is None else KNOWN_PEERS.unpack(content), settings.peer_role_id)

    return ExchangeDependencies(
        settings=settings,
        table=CachedReplica(log, RoutingTable, now_ms),
        peers=CachedDocument(known, decode_peers, now_ms),
        send=partial(send_batch, sqs_client()),
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(MAX_CONNECTIONS)),
        failing_queues=FailingQueues(),
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
        send=made.send,
        executor=made.reporter.executor,
        failing=made.failing_queues,
    )
    publish(SERVICE, outcome.counts)
    for reason, number in Counter(drop.reason for drop in outcome.dropped_messages).items():
        publish(SERVICE, {"MessagesDropped": number}, dimensions={"reason": reason})
    for drop in outcome.dropped_messages[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, queue=drop.queue)
    failures: dict[int, Exception] = dict(outcome.failures)
    undeliverable = [
        (entry, entry.target.rsplit("/", 1)[1], describe_reason(fault)) for entry, fault in outcome.undeliverable
    ]
    for queue, number in Counter(queue for _, queue, _ in undeliverable).items():
        publish(SERVICE, {"MessagesUndeliverable": number}, dimensions={"queue": queue})
    for entry, queue, text in undeliverable:
        try:
            made.reporter.dead_letter_copy(batch, entry.position, entry.outgoing, queue=queue, reason=text)
        except CallFailed as error:
            failures[entry.position] = error
    # Report missing and refusing queues to the links function, with the number of copies that became dead letters.
    due = [url for url in outcome.refusals if made.failing_queues.is_report_due(url, now_ms())]
    failing = [(url, url.rsplit("/", 1)[1]) for url in (*outcome.missing_urls, *due)]
    for start in range(0, len(failing), MAX_REPORTED_QUEUES):
        part = failing[start : start + MAX_REPORTED_QUEUES]
        refusals = {name: outcome.refusals[url][:MAX_REASON] for url, name in part if url in outcome.refusals}
        copies = {name: outcome.missing_urls[url] for url, name in part if url in outcome.missing_urls}
        report = ReportFailingQueues(copies=copies, refusals=refusals or UNSET)
        try:
            send_operation(made.settings.ticks_queue_url, report)
        except DestinationFault:
            logger.exception("FailingQueuesNotReported", queues=[name for _, name in part])
    return made.reporter.report(batch, failures, max_receives=MAX_RECEIVES)
