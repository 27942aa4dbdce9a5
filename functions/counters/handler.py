"""Counts the rendezvous events in a DynamoDB stream, and publishes them. `sluice.rendezvous` has the logic."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import Any

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.bootstrap import read_settings
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, sqs_client
from sluice.aws.documents import EXCHANGES
from sluice.aws.federation.publisher import Publisher
from sluice.aws.metrics import publish
from sluice.aws.rendezvous.exchange_publisher import BindingCounts, ExchangePublisher
from sluice.aws.rendezvous.statistics_store import DynamoStatisticsStore
from sluice.errors import Malformed, SluiceError
from sluice.federation.matching.bindings import CachedReplica
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.statistics import tally
from sluice.rendezvous.counts.stream import read_events
from sluice.rendezvous.settings import CountersSettings

SERVICE = "counters"

logger = Logger()


@cache
def dependencies() -> tuple[ExchangePublisher, DynamoStatisticsStore]:
    """Create the function's dependencies at the first call. Later calls return the same objects."""
    settings = read_settings(CountersSettings)
    bindings = DynamoChangeLog(
        client=dynamodb_client(), table=settings.federation_table, name=EXCHANGES, new_token=new_id
    )
    publisher = ExchangePublisher(
        exchange=settings.exchange,
        site=settings.site,
        publisher=Publisher(settings.ingress_url, sqs_client()),
        bindings=CachedReplica(bindings, BindingCounts, now_ms),
    )
    map_concurrently = ThreadPoolExecutor(MAX_CONNECTIONS).map
    return publisher, DynamoStatisticsStore(dynamodb_client(), settings.table, now_ms, map_concurrently)


def handler(event: dict[str, Any], context: LambdaContext) -> None:
    """Publish a batch of events if a queue is bound to the exchange `events`, and count the events.

    Malformed records are skipped. After a `SluiceError`, Lambda splits the batch in half and retries each half. Events
    of a repeated batch have the same ids, but may be counted twice, so a count may exceed the true number.
    """
    publisher, statistics = dependencies()
    events = list(chain.from_iterable(map(parse_events_or_skip, event["Records"])))
    try:
        published = publisher.publish(events)
        statistics.add([counts for event in events if (counts := tally(event))])
    except SluiceError as error:
        logger.warning("BatchRedelivered", records=len(event["Records"]), reason=str(error))
        publish(SERVICE, {"EventsNotCounted": len(events)})
        raise
    publish(SERVICE, {"EventsCounted": len(events), "EventsPublished": published})


def parse_events_or_skip(record: Mapping[str, Any]) -> Sequence[Event]:
    """Parse a stream record's events. Logs a malformed record, which no retry can repair, and returns no events."""
    try:
        return read_events(record)
    except Malformed as error:
        logger.warning("EventsNotRead", sequence_number=record["dynamodb"]["SequenceNumber"], reason=str(error))
        return ()
