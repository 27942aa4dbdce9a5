"""Puts the links function together: adapters, clock and luck, from its settings."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from msgspec import UNSET

from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import dynamodb_client, lambda_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import EXCHANGES, LINKS, PEERS, DynamoDocument
from sluice.aws.federation.forwards import Forwards
from sluice.aws.federation.mappings import BridgeMappings, PeerMappings
from sluice.aws.federation.peers import PeerQueues
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.aws.federation.redrives import Redrives
from sluice.aws.queues import ReceivedQueues, SqsQueues
from sluice.aws.records import Reporter
from sluice.aws.ticks import Ticks
from sluice.codec import encode
from sluice.federation.administration import Administration
from sluice.federation.bridge_works import RETENTION
from sluice.federation.dynamic_shell import Dynamics
from sluice.federation.exchange_store import ExchangeStore
from sluice.federation.links.links import MAX_RETENTION_S, Bridge
from sluice.federation.links.peers import url_beside
from sluice.federation.links.watch import watch_in
from sluice.federation.operations import LookAgain
from sluice.federation.peer_store import PeerStore
from sluice.federation.ports import Document
from sluice.federation.registrar import Registrar
from sluice.federation.settings import LinksSettings
from sluice.federation.upkeep import Upkeep
from sluice.splitting.filters.values import Filter

TICK = encode(LookAgain()).decode()
DYNAMIC = "dynamic"  # the document with the state of dynamic routes
DECLARED = "declared"  # the document with what was last declared
WATCH = "watch"  # the document with what looks at queues have shown
BRIDGE_TIMEOUT_S = 30
VISIBILITY_S = 6 * BRIDGE_TIMEOUT_S
MAX_RECEIVES = 1_000  # the most that SQS counts to: before that the function says why
MAX_DELAY_S = 900  # of SQS


def filter_problem(filter_: Filter) -> str | None:
    """Say why no route can have a filter; None where one can."""
    from sluice.federation.sieves import problem  # noqa: PLC0415 - patterns and jq compile where a route has some
    from sluice.splitting.jq_runner import compile_problem  # noqa: PLC0415 - see above

    return problem(filter_, compile_problem=compile_problem)


class LinksParts(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment of the links function keeps between its invocations."""

    settings: LinksSettings
    queues: SqsSiteQueues
    peers: PeerQueues
    ticks: SqsQueues
    reporter: Reporter
    documents: Mapping[str, Document]
    exchanges: ExchangeStore

    @classmethod
    def make(cls, settings: LinksSettings) -> "LinksParts":
        """With AWS behind it."""
        return cls(
            settings=settings,
            queues=SqsSiteQueues(sqs_client(), settings.dead_letters_url, settings.arn_prefix),
            peers=PeerQueues(settings.here.account),
            ticks=SqsQueues(sqs_client(), settings.ticks_queue_url),
            reporter=Reporter(
                dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
                executor=ThreadPoolExecutor(1),  # its messages are about one registry, and in order
                # A peer's messages are one group: for six minutes nothing of it would be heard.
                received=ReceivedQueues(sqs_client(), settings.dead_letters_url),
            ),
            documents={
                name: DynamoDocument(client=dynamodb_client(), table=settings.table, name=name, new_token=new_id)
                for name in (LINKS, PEERS, DECLARED, DYNAMIC, WATCH)
            },
            exchanges=ExchangeStore(
                DynamoChangeLog(client=dynamodb_client(), table=settings.table, name=EXCHANGES, new_token=new_id)
            ),
        )

    def registrar(self, *, may_go_on: Callable[[], bool]) -> Registrar:
        """For one invocation."""
        settings = self.settings
        return Registrar(
            here=settings.here,
            document=self.documents[LINKS],
            exchanges=self.exchanges,
            queues=self.queues,
            mappings=BridgeMappings(
                client=lambda_client(), function=settings.bridge_function, arn_prefix=settings.arn_prefix
            ),
            peers=self.peers,
            dead_letters=DeadLetters(sqs_client(), settings.dead_letters_url),
            bridge_queue_attributes=self._bridge_queue_attributes,
            peer_accounts=settings.peer_accounts,
            peer_stages=settings.peer_stages,
            known=PeerStore(self.documents[PEERS]),
            peer_role_id=settings.peer_role_id,
            peer_queue_url=url_beside(settings.here.control_queue_url, here=settings.here.region),
            readable=settings.names.readable,
            filter_problem=filter_problem,
            last_forwards=Forwards(dynamodb_client(), settings.table).last,
            waiting_since=lambda: watch_in(self.documents[WATCH].load()[0]).waiting_since_ms,
            now_ms=now_ms,
            jitter=random.random,
            may_go_on=may_go_on,
            empty_for_ms=settings.counts_settle_s * 1000,
        )

    def _bridge_queue_attributes(self, bridge: Bridge) -> Mapping[str, str]:
        settings = self.settings
        dead_letters = settings.fifo_bridge_dead_letters_arn if bridge.fifo else settings.bridge_dead_letters_arn
        attributes = {
            # The longest, unless somebody says otherwise: an outage may be long.
            RETENTION: str(MAX_RETENTION_S if bridge.retention_s is UNSET else bridge.retention_s),
            "VisibilityTimeout": str(VISIBILITY_S),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_letters, "maxReceiveCount": MAX_RECEIVES}),
        }
        key_arn = settings.kms_key_arn
        attributes |= {"SqsManagedSseEnabled": "true"} if key_arn is None else {"KmsMasterKeyId": key_arn}
        if bridge.fifo:
            # Each group has its own limits, and each is known by its own ids.
            attributes |= {
                "FifoQueue": "true",
                "DeduplicationScope": "messageGroup",
                "FifoThroughputLimit": "perMessageGroupId",
            }
        return attributes

    def upkeep(self, registrar: Registrar) -> Upkeep:
        """Give what looks after routes and bindings, for the same invocation."""
        settings = self.settings
        redrives = Redrives(
            queues=self.queues,
            client=sqs_client(),
            dead_letters_url=settings.dead_letters_url,
            may_go_on=registrar.may_go_on,
        )
        return Upkeep(
            registrar=registrar,
            document=self.documents[WATCH],
            declared=frozenset(settings.names.physical(each.queue) for each in settings.declared.bindings),
            redrive=redrives.redrive,
        )

    def administration(self, registrar: Registrar, dynamics: Dynamics, upkeep: Upkeep) -> Administration:
        """Give what performs operations."""
        return Administration(
            registrar=registrar,
            senders=self.settings.senders,
            peers=self.settings.peers,
            names=self.settings.names,
            kms_key_arn=self.settings.kms_key_arn,
            declared=self.settings.declared,
            applied=self.documents[DECLARED],
            ways=dynamics.ways,
            hear_peers=PeerMappings(client=lambda_client(), queue_arns=self._peers_queues).switch_on,
            upkeep=upkeep,
        )

    @property
    def _peers_queues(self) -> Sequence[str]:
        here = self.settings.here
        urls = (here.control_queue_url, here.ingress_url, here.fifo_ingress_url)
        return [self.settings.arn_prefix + url.rsplit("/", 1)[1] for url in urls]

    def dynamics(self, registrar: Registrar) -> Dynamics:
        """Dynamic routes, for the same invocation."""
        return Dynamics(registrar=registrar, document=self.documents[DYNAMIC])

    def arm_tick(self, registrar: Registrar, upkeep: Upkeep) -> None:
        """Sees to it that the registry, and what is missing, is looked at again in time."""
        at_ms = now_ms()
        times = (registrar.next_tick_ms(registrar.registry()), upkeep.next_look_ms())
        due_at_ms = min((each for each in times if each is not None), default=None)
        if due_at_ms is None:
            return
        delay_s = min(max(-(-(due_at_ms - at_ms) // 1000), 1), MAX_DELAY_S)
        ticks = Ticks(dynamodb_client(), self.settings.table, "links")
        if ticks.claim(due_at_ms=at_ms + delay_s * 1000, now_ms=at_ms):
            self.ticks.send(self.settings.ticks_queue_url, TICK, delay_s=delay_s)
