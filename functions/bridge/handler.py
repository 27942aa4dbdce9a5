"""Forwards the messages of SQS events over routes, and reports failed ones. `sluice.federation` has the logic."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec import UNSET

from functions.bootstrap import make_reporter, read_settings, send_operation
from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, now_s
from sluice.aws.documents import LINKS, DynamoDocument
from sluice.aws.federation.peers import PeerQueues
from sluice.aws.federation.routes import ForwardTimes, RouteRates
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.errors import DestinationFault, HeldBack, PeerRefused
from sluice.federation.forwarder import ForwardOutcome, forward_all, split_batch
from sluice.federation.links.registry import REGISTRY, Forward, Registry, find_forwards
from sluice.federation.operations import ReportOutage
from sluice.federation.settings import BridgeSettings
from sluice.federation.stored import CachedDocument
from sluice.message import FIFO_SUFFIX, Message
from sluice.splitting.filters.values import Filter

if TYPE_CHECKING:  # Only routes with a filter import jq.
    from sluice.splitting.jq_runner import JqRunner

SERVICE = "bridge"
MAX_RECEIVES = 10  # receives after which a failed message becomes a dead letter; outages don't count
SAMPLED_DROPS = 3  # At most this many dropped messages of a batch are logged. The metric counts all of them.
NO_ROUTE = "no route can forward messages from this queue now"
RATE_EXCEEDED = "the route's rate is used up by earlier messages"
RECORD_INTERVAL_MS = 10_000
# In an outage of the peer, the queue's trigger takes some seconds to stop. Meanwhile SQS redelivers messages.
# These delays keep the number of receives low, because a redrive policy counts each receive.
REDELIVERY_DELAYS_S = (5, 20, 80)

logger = Logger()


class BridgeDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment of the bridge function keeps between batches.

    `routes` returns the routes that read a queue. Its results are cached until the registry changes.
    """

    settings: BridgeSettings
    routes: CachedDocument[Callable[[str], list[Forward]]]
    peers: PeerQueues
    forward_times: ForwardTimes
    route_rates: RouteRates
    reporter: Reporter
    sleep: Callable[[float], None] = time.sleep
    recorded_at_ms: dict[str, int] = msgspec.field(default_factory=dict)  # times of the bridges' last recorded forwards

    def forward(self, messages: Sequence[Message], route: Forward, *, queue: str) -> ForwardOutcome:
        """Forward a batch, and report its outcome to the link. A route's rate may delay the batch."""
        if route.bridge.rate is not UNSET:
            began_ms = now_ms()
            start_ms = self.route_rates.reserve_ms(
                route.bridge.name, messages=len(messages), rate=route.bridge.rate, now_ms=began_ms
            )
            if start_ms is None:
                return ForwardOutcome(failures=dict.fromkeys(range(len(messages)), HeldBack(RATE_EXCEEDED)))
            self.sleep(max(start_ms - began_ms, 0) / 1_000)
        outcome = forward_all(
            messages,
            route,
            fifo=queue.endswith(FIFO_SUFFIX),
            site=self.settings.site,
            now_ms=now_ms(),
            peers=self.peers,
            executor=self.reporter.executor,
            passes_filter=None if route.bridge.filter is UNSET else start_filter(route.bridge.filter),
        )
        bridge, at_ms = route.bridge.name, now_ms()
        try:
            if outcome.outage is not None:
                refused = isinstance(outcome.outage, PeerRefused)
                report = ReportOutage(link=route.link.name, refused=refused, error=str(outcome.outage), at_ms=at_ms)
                send_operation(self.settings.ticks_queue_url, report)
            elif (
                outcome.counts["MessagesForwarded"] and at_ms - self.recorded_at_ms.get(bridge, 0) >= RECORD_INTERVAL_MS
            ):
                self.recorded_at_ms[bridge] = at_ms  # A successful forward proves that the link works.
                self.forward_times.record(bridge, at_ms=at_ms)
        except DestinationFault:
            # The batch is already forwarded, so the error is only logged. The next batch reports the state again.
            logger.exception("OutcomeNotReported", bridge=bridge)
        return outcome


@cache
def dependencies() -> BridgeDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(BridgeSettings)
    document = DynamoDocument(client=dynamodb_client(), table=settings.table, name=LINKS, new_token=new_id)

    def decode_routes(content: bytes | None) -> Callable[[str], list[Forward]]:
        registry = Registry(here=settings.site) if content is None else REGISTRY.unpack(content)
        return lru_cache(partial(find_forwards, registry))

    executor = ThreadPoolExecutor(MAX_CONNECTIONS)
    return BridgeDependencies(
        settings=settings,
        routes=CachedDocument(document, decode_routes, now_ms),
        peers=PeerQueues(settings.account),
        forward_times=ForwardTimes(dynamodb_client(), settings.table),
        route_rates=RouteRates(dynamodb_client(), settings.table),
        reporter=make_reporter(settings.dead_letters_url, executor, redelivery_delays_s=REDELIVERY_DELAYS_S),
    )


def start_filter(filter_: Filter) -> Callable[[Message], bool]:
    """Return a function that tells whether a route's filter matches a message of one batch."""
    from sluice.federation.route_filters import make_route_filter  # noqa: PLC0415 - patterns compile where a route has some

    jq = jq_runner()
    return make_route_filter(filter_, clock=now_s, decide=jq, ensure_started=jq.ensure_started)


@cache
def jq_runner() -> "JqRunner":
    """Return the environment's only runner of jq programs. The runner starts with its first program."""
    from sluice.splitting.jq_runner import JqRunner  # noqa: PLC0415 - for routes with a filter

    return JqRunner()


def handler(event: dict[str, Any], context: LambdaContext) -> BatchResponse:
    """Forward an event's messages, which are all from one queue. One or several routes read this queue."""
    made, batch = dependencies(), Batch.parse(event)
    routes = made.routes.value()(batch.queue)  # A queue has no routes while they are being created or removed.
    failures: dict[int, Exception] = {}
    if not routes:
        failures = dict.fromkeys(range(len(batch.messages)), HeldBack(NO_ROUTE))
    for route, positions in zip(routes, split_batch(batch.messages, len(routes)), strict=True):
        outcome = made.forward([batch.messages[position] for position in positions], route, queue=batch.queue)
        publish_outcome(outcome, route)
        failures |= {positions[place]: fault for place, fault in outcome.failures.items()}
    return made.reporter.report(batch, failures, max_receives=MAX_RECEIVES)


def publish_outcome(outcome: ForwardOutcome, route: Forward) -> None:
    """Publish the metrics of a forwarded batch. Log an outage of the peer and the first dropped messages."""
    of_route = {"route": route.bridge.name}
    counts = dict(outcome.counts)
    if counts.get("MessagesForwarded"):
        counts["LagMs"] = outcome.lag_ms
    publish(SERVICE, counts, dimensions=of_route)
    if outcome.lag_ms:
        publish(SERVICE, {"LagMs": outcome.lag_ms})  # This metric has no dimension: its alarm covers all routes.
    if outcome.outage is not None:
        publish(SERVICE, {"PeerNotReached": 1})  # An alarm watches this metric.
        logger.warning("PeerNotReached", route=route.bridge.name, error=str(outcome.outage))
    for drop in list(outcome.dropped_messages.values())[:SAMPLED_DROPS]:
        logger.info("MessageDropped", message_id=drop.message_id, reason=drop.reason, route=route.bridge.name)
