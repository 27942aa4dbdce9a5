"""Puts the bridge function together: adapters and clock, from its settings."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

import msgspec
from aws_lambda_powertools.logging import Logger
from msgspec import UNSET

from sluice.aws.clients import MAX_CONNECTIONS, dynamodb_client, new_id, now_ms, now_s, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import LINKS, DynamoDocument
from sluice.aws.federation.forwards import Forwards
from sluice.aws.federation.peers import PeerQueues
from sluice.aws.federation.rates import RouteRates
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.codec import encode
from sluice.errors import DestinationFault, HeldBack
from sluice.federation.forwarder import FIFO_SUFFIX, ForwardOutcome, forward_all
from sluice.federation.links.registry import REGISTRY, Forward, Registry, forwards_of
from sluice.federation.operations import ReportOutage
from sluice.federation.ports import PeerRefused
from sluice.federation.seen import Seen
from sluice.federation.settings import BridgeSettings
from sluice.message import Message
from sluice.splitting.filters.values import Filter

if TYPE_CHECKING:
    from sluice.splitting.jq_runner import JqRunner

NO_TURN = "too many messages of its route are in line before it"
NOTED_EVERY_MS = 10_000
# After an outage nobody is to read the queue until the peer is back, once its trigger is off. That takes some seconds,
# in which messages come again; each of them counts where the queue has a redrive policy.
AGAIN_AFTER_S = (5, 20, 80)

logger = Logger()


@cache
def programs() -> "JqRunner":
    """Give what runs the filters' jq programs, one for an environment; it starts with the first program."""
    from sluice.splitting.jq_runner import JqRunner  # noqa: PLC0415 - for routes with a filter

    return JqRunner()


class BridgeParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the bridge function keeps between its batches.

    `found` gives the bridges that read a queue, and looks for them once for each version of the registry.
    """

    settings: BridgeSettings
    found: Seen[Callable[[str], list[Forward]]]
    peers: PeerQueues
    forwards: Forwards
    rates: RouteRates
    ticks: SqsQueues
    reporter: Reporter
    executor: Executor
    sleep: Callable[[float], None] = time.sleep
    noted_at_ms: dict[str, int] = msgspec.field(default_factory=dict)  # by bridge

    @classmethod
    def make(cls, settings: BridgeSettings) -> "BridgeParts":
        """With AWS behind it."""
        document = DynamoDocument(client=dynamodb_client(), table=settings.table, name=LINKS, new_token=new_id)

        def decode(content: bytes | None) -> Callable[[str], list[Forward]]:
            registry = Registry(here=settings.site) if content is None else REGISTRY.unpack(content)
            return lru_cache(partial(forwards_of, registry))

        executor = ThreadPoolExecutor(MAX_CONNECTIONS)
        return cls(
            settings=settings,
            found=Seen(document, decode, now_ms),
            peers=PeerQueues(settings.account),
            forwards=Forwards(dynamodb_client(), settings.table),
            rates=RouteRates(dynamodb_client(), settings.table),
            ticks=SqsQueues(sqs_client(), settings.ticks_queue_url),
            executor=executor,
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=executor,
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
                again_after_s=AGAIN_AFTER_S,
            ),
        )

    def routes(self, queue: str) -> list[Forward]:
        """Give the bridges that read the queue with this name and can; none where they are gone, or not there yet."""
        return self.found.value()(queue)

    def forward(self, messages: Sequence[Message], route: Forward, *, queue: str) -> ForwardOutcome:
        """Forward a batch, in its turn where the route has a rate, and tell the link what that showed."""
        if route.bridge.rate is not UNSET:
            began_ms = now_ms()
            turn_ms = self.rates.turn_ms(
                route.bridge.name, messages=len(messages), rate=route.bridge.rate, now_ms=began_ms
            )
            if turn_ms is None:
                return ForwardOutcome(failures=dict.fromkeys(range(len(messages)), HeldBack(NO_TURN)))
            self.sleep(max(turn_ms - began_ms, 0) / 1_000)
        outcome = forward_all(
            messages,
            route,
            fifo=queue.endswith(FIFO_SUFFIX),
            site=self.settings.site,
            now_ms=now_ms(),
            peers=self.peers,
            executor=self.executor,
            lets_over=None if route.bridge.filter is UNSET else self._sieve(route.bridge.filter),
        )
        try:
            self._tell(outcome, route)
        except DestinationFault:
            # The messages are where they belong; the next batch tells it as well.
            logger.exception("OutcomeNotTold", bridge=route.bridge.name)
        return outcome

    def _sieve(self, filter_: Filter) -> Callable[[Message], bool]:
        from sluice.federation.sieves import Sieve  # noqa: PLC0415 - patterns compile where a route has some

        jq = programs()
        return Sieve.of(filter_, clock=now_s, decide=jq, ready=jq.ready).lets_over

    def _tell(self, outcome: ForwardOutcome, route: Forward) -> None:
        if outcome.outage is not None:
            refused = isinstance(outcome.outage, PeerRefused)
            said = ReportOutage(link=route.link.name, refused=refused, error=str(outcome.outage), at_ms=now_ms())
            self.ticks.send(self.settings.ticks_queue_url, encode(said).decode())
        elif outcome.counts["MessagesForwarded"]:
            self._note(route.bridge.name)

    def _note(self, bridge: str) -> None:
        """Note that the bridge forwards: evidence that its link is well, now and then."""
        at_ms = now_ms()
        if at_ms - self.noted_at_ms.get(bridge, 0) >= NOTED_EVERY_MS:
            self.noted_at_ms[bridge] = at_ms
            self.forwards.note(bridge, at_ms=at_ms)
