"""Publishes a function's rendezvous events by writing them to the table after the function's work.

The table's stream takes them to the counters function, which counts and publishes them. Statistics never fail a
rendezvous, nor hold one up for long: what can't be written is logged, counted, and lost.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from aws_lambda_powertools.logging import Logger
from botocore.config import Config

from sluice.aws.clients import CONFIG, calls, make_client
from sluice.aws.items import attributes
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.counts.stream import TOLD, join_events
from sluice.rendezvous.event_recorder import NOT_PUBLISHED
from sluice.times import NowMs
from sluice.ulids import derive_ulid

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_dynamodb import DynamoDBClient

# A function's caller waits while it tells, so it doesn't wait as long as others may.
EVENTS_CONFIG = CONFIG.merge(
    Config(connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 2})
)
MAX_TOLD_BYTES = 300_000  # in one item, which has 400 KB; in the stream it comes as text in JSON
KEPT_S = 60 * 60  # the stream has it for a day; the item is for whoever looks

logger = Logger()


@cache
def events_client() -> "DynamoDBClient":
    """Make the environment's client for events when there is the first to tell of; safe for threads."""
    client: DynamoDBClient = make_client("dynamodb", config=EVENTS_CONFIG)
    return client


class TableEventPublisher(msgspec.Struct, frozen=True, kw_only=True):
    """Tells of events by items of partition `told`. `site` is the tag of the site where they happened."""

    table: str
    site: str
    client: Callable[[], "DynamoDBClient"]
    now_ms: NowMs
    new_id: Callable[[], str]

    def publish(self, events: Sequence[Event]) -> int:
        """Write them, all in one item where they fit; returns how many could not be. Raises nothing."""
        published = 0
        try:
            for bodies in _split_events(event.to_json(site=self.site) for event in events):
                now_ms = self.now_ms()
                # An item that is written again, as the first answer was lost, is no change, and in no stream.
                item: dict[str, str | int] = {
                    "pk": TOLD,
                    "sk": derive_ulid(self.new_id(), sent_at_ms=now_ms),
                    "events": join_events(bodies),
                    "expires_at": now_ms // 1000 + KEPT_S,
                }
                with calls("PutItem"):
                    self.client().put_item(TableName=self.table, Item=attributes(item))
                published += len(bodies)
        except Exception as error:  # whatever it was, the rendezvous is done and stays so
            logger.warning(NOT_PUBLISHED, lost=len(events) - published, reason=str(error), exc_info=error)
        return len(events) - published


def _split_events(bodies: Iterable[str]) -> Iterator[Sequence[str]]:
    """Divide events into what an item holds."""
    part: list[str] = []
    size = 0
    for body in bodies:
        added = len(body.encode())
        if part and size + added > MAX_TOLD_BYTES:
            yield part
            part, size = [], 0
        part.append(body)
        size += added
    if part:
        yield part
