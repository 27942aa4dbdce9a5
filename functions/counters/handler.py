"""Counts rendezvous events of a DynamoDB stream, and publishes them. `sluice.rendezvous` has the logic."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import read_settings
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import EXCHANGES
from sluice.aws.federation.publisher import Publisher
from sluice.aws.metrics import publish
from sluice.aws.records import BatchResponse
from sluice.aws.rendezvous.exchange_publisher import BindingCounts, ExchangePublisher
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.errors import CallFailed
from sluice.federation.matching.bindings import CachedReplica
from sluice.message import DeadLetter, Message
from sluice.rendezvous.counting import EventCounter
from sluice.rendezvous.counts.stream import StreamRecord, read_record
from sluice.rendezvous.settings import CountersSettings

SERVICE = "counters"

logger = Logger()


@cache
def dependencies() -> tuple[EventCounter, DeadLetters]:
    """Create the function's dependencies at the first call. Later calls return the same objects."""
    settings = read_settings(CountersSettings)
    bindings = DynamoChangeLog(
        client=dynamodb_client(), table=settings.federation_table, name=EXCHANGES, new_token=new_id
    )
    demand = CachedReplica(bindings, BindingCounts, now_ms)
    publisher = ExchangePublisher(
        exchange=settings.exchange, site=settings.site, publisher=Publisher(settings.ingress_url, sqs_client())
    )
    map_concurrently = ThreadPoolExecutor(MAX_CONNECTIONS).map
    counting = EventCounter(
        statistics=DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms, map_concurrently),
        is_wanted=lambda: demand.value().has_binding(settings.exchange),
        publish=publisher.publish,
    )
    return counting, DeadLetters(sqs_client(), settings.dead_letters_url)


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Count and publish a batch of events. Malformed events become dead letters; unknown kinds are skipped."""
    counting, dead_letters = dependencies()
    records = [read_record(record) for record in event["Records"]]
    counted = counting.count(records)
    done = send_dead_letters(records[: counted.done], dead_letters, source=event["Records"][0]["eventSourceARN"])
    left = records[done:]
    event_count = sum(len(record.events) for record in records)
    publish(
        SERVICE,
        Counter(
            EventsCounted=counted.counted,
            EventsNotCounted=event_count - counted.counted,
            EventsPublished=counted.published,
        ),
    )
    if not left:
        return {"batchItemFailures": []}
    logger.warning("BatchRedelivered", records=len(left), reason=counted.reason)
    return {"batchItemFailures": [{"itemIdentifier": left[0].sequence_number}]}


def send_dead_letters(records: Sequence[StreamRecord], dead_letters: DeadLetters, *, source: str) -> int:
    """Send malformed events to the dead-letter queue. Returns the number of leading records that are done."""
    for position, record in enumerate(records):
        for bad in record.bad:
            message = Message(message_id=record.sequence_number, body=bad.body)
            letter = DeadLetter(message=message, reason=f"Malformed: {bad.reason}", source=source)
            try:
                dead_letters.send(letter)
            except CallFailed as error:
                logger.warning("DeadLetterNotSent", reason=str(error))
                return position
    return len(records)
