"""Publishes a function's rendezvous events to the site's exchange, once its work is done: as `sluice.publish` does.

Statistics never fail a rendezvous, nor hold one up for long: what can't be published is logged, counted, and lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from aws_lambda_powertools.logging import Logger
from botocore.config import Config

from sluice.aws.clients import CONFIG, make_client
from sluice.rendezvous.counts.events import Event

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

NOT_PUBLISHED = "EventsNotPublished"  # a metric, and what the log says
# A function's caller waits while it publishes, so it doesn't wait as long as a long poll may.
EVENTS_CONFIG = CONFIG.merge(
    Config(connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 2})
)

logger = Logger()


@cache
def events_client() -> "SQSClient":
    """The environment's SQS client for events, made when there is the first to publish; safe for threads."""
    client: SQSClient = make_client("sqs", config=EVENTS_CONFIG)
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPublisher:
    """Publishes to one exchange. `site` is the tag of the site where the events happened."""

    exchange: str
    ingress_url: str
    site: str

    def publish(self, events: Sequence[Event]) -> int:
        """Sends them, ten a request; how many could not be sent. Raises nothing."""
        if not events:
            return 0
        try:
            return self._publish(events)
        except Exception:  # whatever it was, the rendezvous is done and stays so
            logger.exception(NOT_PUBLISHED, lost=len(events))
            return len(events)

    def _publish(self, events: Sequence[Event]) -> int:
        # Imported when nobody waits any more: it would be a tenth of the function's cold start.
        from sluice.aws.federation.publisher import NotPublished, Publisher, Publishing  # noqa: PLC0415 - see above

        publishings = (
            Publishing(
                exchange=self.exchange,
                key=event.routing_key,
                body=event.to_json(site=self.site),
                attributes=event.attributes,
                trace_header=event.trace,
            )
            for event in events
        )
        try:
            Publisher(self.ingress_url, events_client()).publish_all(publishings)
        except NotPublished as error:
            # Those after the first request that fails aren't sent either.
            lost = len(error.failed) + len(events) - error.tried
            logger.warning(NOT_PUBLISHED, lost=lost, reason=str(error))
            return lost
        return 0
