"""Publishes a function's rendezvous events by writing them to a DynamoDB table, after the function's other work.

The table's stream invokes the counters function, which counts and publishes the events. Errors of statistics never fail
a rendezvous: events that can't be written are logged, counted and lost.
"""

from collections.abc import Callable, Sequence
from functools import cache

import msgspec
from aws_lambda_powertools.logging import Logger
from botocore.config import Config

from sluice.aws.client_types import DynamoDBClient
from sluice.aws.clients import CONFIG, calls, make_client
from sluice.aws.items import attributes
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.stream import EVENTS_PARTITION
from sluice.rendezvous.event_recorder import NOT_PUBLISHED
from sluice.times import NowMs
from sluice.ulids import derive_ulid

# A client or proxy waits while its function writes events, so these requests have short timeouts.
EVENTS_CONFIG = CONFIG.merge(
    Config(connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 2})
)
MAX_EVENTS = 500  # An item has at most this many events, about 210 KB. DynamoDB's limit of an item is 400 KB.
KEPT_S = 60 * 60  # The stream keeps the events for a day; the items are kept for an hour, only for debugging.

logger = Logger()


@cache
def get_events_client() -> DynamoDBClient:
    """Create the environment's DynamoDB client for events, when the first event is published. Thread-safe."""
    client: DynamoDBClient = make_client("dynamodb", config=EVENTS_CONFIG)
    return client


class TableEventPublisher(msgspec.Struct, frozen=True, kw_only=True):
    """Writes events to items of the partition `told`. `site` is the tag of the events' site."""

    table: str
    site: str
    client: Callable[[], DynamoDBClient]
    now_ms: NowMs
    new_id: Callable[[], str]

    def publish(self, events: Sequence[Event]) -> int:
        """Write the events, in one item if they fit. Returns the number of lost events. Never raises."""
        left = events
        try:
            while left:
                now_ms, bodies = self.now_ms(), [event.to_json(site=self.site) for event in left[:MAX_EVENTS]]
                # A retry writes an identical item. DynamoDB's stream has no record of it, so no event is counted twice.
                item: dict[str, str | int] = {
                    "pk": EVENTS_PARTITION,
                    "sk": derive_ulid(self.new_id(), sent_at_ms=now_ms),
                    "events": f"[{','.join(bodies)}]",
                    "expires_at": now_ms // 1000 + KEPT_S,
                }
                with calls("PutItem"):
                    self.client().put_item(TableName=self.table, Item=attributes(item))
                left = left[MAX_EVENTS:]
        except Exception as error:  # An error of the statistics must not fail the rendezvous.
            logger.warning(NOT_PUBLISHED, lost=len(left), reason=str(error), exc_info=error)
        return len(left)
