"""Publishes a function's rendezvous events to the site's exchange, once its work is done: as `sluice.publish` does.

Statistics never fail a rendezvous, nor hold one up for long: what can't be published is logged, counted, and lost.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from aws_lambda_powertools.logging import Logger
from botocore.config import Config

from sluice.aws.clients import CONFIG, make_client, new_id, now_ms
from sluice.rendezvous.countries import Countries
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.event_recorder import NOT_PUBLISHED, EventRecorder
from sluice.rendezvous.settings import EventSettings

if TYPE_CHECKING:  # boto3-stubs are for the type checker: bundles don't hold them
    from mypy_boto3_sqs import SQSClient

BUNDLE = Path(__file__).parents[3]  # where a database of countries is, beside our code
TRACE_VARIABLE = "_X_AMZN_TRACE_ID"  # Lambda sets it for every invocation
# A function's caller waits while it publishes, so it doesn't wait as long as a long poll may.
EVENTS_CONFIG = CONFIG.merge(
    Config(connect_timeout=1, read_timeout=2, retries={"mode": "standard", "total_max_attempts": 2})
)

logger = Logger()


def recorder_for(settings: EventSettings | None, *, hash_of: Callable[[str], str | None]) -> EventRecorder:
    """Make an environment's recorder. Without settings no country is looked up, and what was noted is forgotten."""
    trace = partial(os.environ.get, TRACE_VARIABLE)
    if settings is None:
        return EventRecorder(country_of=Countries().of, hash_of=hash_of, trace=trace, now_ms=now_ms, new_id=new_id)
    publisher = EventPublisher(exchange=settings.exchange, ingress_url=settings.ingress_url, site=settings.site)
    return EventRecorder(
        country_of=Countries(str(BUNDLE / settings.geoip_file) if settings.geoip_file else None).of,
        hash_of=hash_of,
        trace=trace,
        now_ms=now_ms,
        new_id=new_id,
        publisher=publisher.publish,
    )


@cache
def events_client() -> "SQSClient":
    """Make the environment's SQS client for events when there is the first to publish; safe for threads."""
    client: SQSClient = make_client("sqs", config=EVENTS_CONFIG)
    return client


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPublisher:
    """Publishes to one exchange. `site` is the tag of the site where the events happened."""

    exchange: str
    ingress_url: str
    site: str

    def publish(self, events: Sequence[Event]) -> int:
        """Send them, ten a request; returns how many could not be sent. Raises nothing."""
        try:
            return self._publish(events)
        except Exception:  # whatever it was, the rendezvous is done and stays so
            logger.exception(NOT_PUBLISHED, lost=len(events))
            return len(events)

    def _publish(self, events: Sequence[Event]) -> int:
        # Imported when nobody waits any more: it would be a tenth of the function's cold start.
        from sluice.aws.federation.publisher import NotPublished, Publisher, Publishing  # noqa: PLC0415 - see above

        left = [
            Publishing(
                exchange=self.exchange,
                key=event.routing_key,
                body=event.to_json(site=self.site),
                attributes=event.attributes,
                trace_header=event.trace,
            )
            for event in events
        ]
        publisher = Publisher(self.ingress_url, events_client())
        for last in (False, True):
            try:
                publisher.publish_all(left)
            except NotPublished as error:
                # Those after the first request that fails aren't sent either.
                left = [left[place] for place in error.failed] + left[error.tried :]
                # Single entries that SQS failed are sent once more; a request that failed was tried again already.
                if last or error.__cause__ is not None:
                    logger.warning(NOT_PUBLISHED, lost=len(left), reason=str(error))
                    return len(left)
            else:
                break
        return 0
