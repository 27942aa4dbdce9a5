"""Publishes rendezvous events to the site's exchange with `sluice.publish`, if any queue is bound to receive them."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from aws_lambda_powertools.logging import Logger

from sluice.aws.federation.publisher import BadPublishRequest, Publisher, PublishRequest
from sluice.federation.matching.bindings import Bindings, BindingsChange, CachedReplica, iter_bound_queues
from sluice.federation.matching.exchanges import Exchange, list_alternates
from sluice.rendezvous.counts.events import Event
from sluice.rendezvous.event_recorder import NOT_PUBLISHED

logger = Logger()


class ExchangePublisher(msgspec.Struct, frozen=True, kw_only=True):
    """Publishes events to one exchange. `site` is the tag of the site where the events happened."""

    exchange: str
    site: str
    publisher: Publisher
    bindings: CachedReplica["BindingCounts"]

    def publish(self, events: Sequence[Event]) -> int:
        """Send events in order, ten per request, if a queue is bound to the exchange.

        Returns the number of sent events. Events that can never be published are logged and skipped. Raises any other
        error as `SluiceError`. Some events may have been sent before the error, so the caller must send all events
        again, with the same ids.
        """
        if not events or not self.bindings.value().has_binding(self.exchange):
            return 0
        left = [
            PublishRequest(
                exchange=self.exchange,
                key=event.routing_key,
                body=event.to_json(site=self.site),
                attributes=event.attributes,
                trace_header=event.trace,
            )
            for event in events
        ]
        while left:
            try:
                self.publisher.publish_all(left)
                break
            except BadPublishRequest as error:
                logger.exception(NOT_PUBLISHED, lost=1)
                left = left[error.place + 1 :]
        return len(events)


class BindingCounts:
    """Counts the bindings of each exchange, as a `Replica` of the site's bindings."""

    __slots__ = ("_bound", "_exchanges", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Count the bindings of each exchange in a snapshot."""
        self.version = bindings.version
        self._exchanges: dict[str, Exchange] = {}
        self._bound: Counter[str] = Counter()
        self.apply(BindingsChange(exchanges=bindings.exchanges, bound=bindings.bound))

    def apply(self, change: BindingsChange) -> None:
        """Apply the changes of bindings in the next version."""
        self._exchanges.update((added.name, added) for added in change.exchanges)
        for exchange, _, keys in iter_bound_queues(change.unbound):
            self._bound[exchange] -= len(keys)
        for exchange, _, keys in iter_bound_queues(change.bound):
            self._bound[exchange] += len(keys)
        for name in change.gone_exchanges:
            self._exchanges.pop(name, None)

    def has_binding(self, exchange: str) -> bool:
        """Return whether a queue is bound to the exchange, or to an alternate exchange for its unroutable messages."""
        return exchange in self._exchanges and any(
            self._bound[name] for name in list_alternates(exchange, self._exchanges)
        )
