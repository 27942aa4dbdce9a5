"""Manages exchanges, bindings, links and routes: serves operators' requests, peers' messages, ticks and the schedule.

`sluice.federation.operations` defines the requests. An invalid request gets an error reply.
"""

import json
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import msgspec
from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext
from msgspec import UNSET

from functions.bootstrap import make_reporter, make_time_check, parse_event, read_settings, send_operation
from sluice.aws.change_logs import DynamoChangeLog
from sluice.aws.clients import dynamodb_client, lambda_client, new_id, now_ms, sqs_client
from sluice.aws.dead_letters import DeadLetters
from sluice.aws.documents import EXCHANGES, LINKS, PEERS, DynamoDocument
from sluice.aws.federation.mappings import BridgeMappings, enable_peer_mappings
from sluice.aws.federation.peers import PeerQueues
from sluice.aws.federation.queues import SqsSiteQueues
from sluice.aws.federation.routes import ForwardTimes
from sluice.aws.metrics import publish
from sluice.aws.records import Batch, BatchResponse, Reporter
from sluice.aws.ticks import Ticks
from sluice.errors import BadConfiguration, BadSnapshot, Malformed, QueueGone, SenderFault
from sluice.federation.bridge_provisioner import RETENTION, BridgeProvisioner, build_queue_attributes
from sluice.federation.drift_repair import DriftRepair
from sluice.federation.dynamic_service import DynamicRouteService
from sluice.federation.exchange_store import ExchangeStore
from sluice.federation.link_service import LinkService
from sluice.federation.links.links import MAX_RETENTION_S, Bridge
from sluice.federation.links.messages import DynamicMessage, decode_control
from sluice.federation.links.peers import KNOWN_PEERS, build_peer_url_function
from sluice.federation.links.registry import list_down_routes
from sluice.federation.links.watch import WATCH, SiteWatch
from sluice.federation.operation_handler import OperationHandler
from sluice.federation.operations import OPERATIONS, FederationOperation, SweepSite, Tick
from sluice.federation.settings import LinksSettings
from sluice.federation.stored import DocumentStore
from sluice.message import Message
from sluice.operations import build_error_reply, build_reply, parse_request
from sluice.splitting.filters.values import Filter

SERVICE = "links"
TIME_RESERVE_MS = 5_000  # No new work starts in the last five seconds before an invocation's time-out.
DYNAMIC = "dynamic"  # The document `dynamic` has the state of dynamic routes.
DECLARED = "declared"  # The document `declared` has the last applied declaration.
WATCH_DOCUMENT = "watch"  # The document `watch` has the results of checks of queues and routes.
BRIDGE_TIMEOUT_S = 30
VISIBILITY_S = 6 * BRIDGE_TIMEOUT_S
MAX_RECEIVES = 1_000  # SQS's limit of receives. The bridge function gives up much earlier, and reports the error.
MAX_DELAY_S = 900  # SQS's longest delay of a message, in seconds

logger = Logger()


class LinksDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Clients and caches that an environment of the links function keeps between invocations."""

    settings: LinksSettings
    queues: SqsSiteQueues
    peers: PeerQueues
    reporter: Reporter
    documents: Mapping[str, DynamoDocument]
    exchanges: ExchangeStore

    def make_link_service(self, context: LambdaContext) -> LinkService:
        """Create the link service for one invocation."""
        settings = self.settings
        return LinkService(
            here=settings.here,
            document=self.documents[LINKS],
            exchanges=self.exchanges,
            provisioner=BridgeProvisioner(
                here=settings.here,
                exchanges=self.exchanges,
                queues=self.queues,
                mappings=BridgeMappings(
                    client=lambda_client(), function_name=settings.bridge_function, arn_prefix=settings.arn_prefix
                ),
                dead_letter_queue=DeadLetters(sqs_client(), settings.dead_letters_url),
                bridge_queue_attributes=self._build_bridge_queue_attributes,
                find_readable_queue=settings.names.find_readable_queue,
                may_go_on=make_time_check(context, reserve_ms=TIME_RESERVE_MS),
            ),
            peers=self.peers,
            peer_accounts=frozenset(settings.accounts),
            peer_stages=frozenset({settings.here.stage or "", *(settings.stages or ())}),
            known_peers=DocumentStore(self.documents[PEERS], KNOWN_PEERS, dict),
            peer_role_id=settings.peer_role_id,
            peer_queue_url=build_peer_url_function(settings.here.control_queue_url, here=settings.here.region),
            find_filter_problem=find_route_filter_problem,
            last_forwards=ForwardTimes(dynamodb_client(), settings.table).read_all,
            waiting_since=lambda: (
                DocumentStore(self.documents[WATCH_DOCUMENT], WATCH, SiteWatch).value().waiting_since_ms
            ),
            now_ms=now_ms,
            jitter=random.random,
            empty_for_ms=settings.counts_settle_s * 1000,
        )

    def _build_bridge_queue_attributes(self, bridge: Bridge) -> Mapping[str, str]:
        settings = self.settings
        dead_letters = settings.fifo_bridge_dead_letters_arn if bridge.fifo else settings.bridge_dead_letters_arn
        return {
            **build_queue_attributes(fifo=bridge.fifo, kms_key_arn=settings.kms_key_arn),
            # By default, bridge queues have SQS's longest retention, because an outage of a peer may be long.
            RETENTION: str(MAX_RETENTION_S if bridge.retention_s is UNSET else bridge.retention_s),
            "VisibilityTimeout": str(VISIBILITY_S),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": dead_letters, "maxReceiveCount": MAX_RECEIVES}),
        }

    def make_drift_repair(self, link_service: LinkService) -> DriftRepair:
        """Create the repair of routes and bindings, for the same invocation as `link_service`."""
        settings = self.settings
        return DriftRepair(
            link_service=link_service,
            document=self.documents[WATCH_DOCUMENT],
            declared=frozenset(settings.names.physical_name(binding.queue) for binding in settings.declared.bindings),
            redrive=partial(
                self.queues.redrive,
                dead_letters_url=settings.dead_letters_url,
                may_go_on=link_service.provisioner.may_go_on,
            ),
        )

    def make_operation_handler(
        self, link_service: LinkService, dynamics: DynamicRouteService, drift_repair: DriftRepair
    ) -> OperationHandler:
        """Create the operation handler for the same invocation as `link_service`."""
        settings, here = self.settings, self.settings.here
        urls = (here.control_queue_url, here.ingress_url, here.fifo_ingress_url)
        queue_arns = [settings.arn_prefix + url.rsplit("/", 1)[1] for url in urls]
        return OperationHandler(
            link_service=link_service,
            drift_repair=drift_repair,
            site_names=settings.names,
            enable_peer_mappings=partial(enable_peer_mappings, lambda_client(), queue_arns),
            peers=settings.peers,
            declared=settings.declared,
            applied_document=self.documents[DECLARED],
            sender_role_ids=settings.senders,
            read_paths=dynamics.paths,
            kms_key_arn=settings.kms_key_arn,
        )

    def arm_tick(self, link_service: LinkService, drift_repair: DriftRepair) -> None:
        """Schedule a tick for the next check of the registry or a missing resource, unless one is pending."""
        at_ms = now_ms()
        times = (link_service.next_tick_ms(link_service.registry()), drift_repair.next_check_ms())
        due_at_ms = min((time_ms for time_ms in times if time_ms is not None), default=None)
        if due_at_ms is None:
            return
        delay_s = min(max(-(-(due_at_ms - at_ms) // 1000), 1), MAX_DELAY_S)
        ticks = Ticks(dynamodb_client(), self.settings.table, "links")
        if ticks.claim(due_at_ms=at_ms + delay_s * 1000, now_ms=at_ms):
            send_operation(self.settings.ticks_queue_url, Tick(), delay_s=delay_s)


@cache
def dependencies() -> LinksDependencies:
    """Create the function's dependencies at the first call. Later calls return the same object."""
    settings = read_settings(LinksSettings)
    return LinksDependencies(
        settings=settings,
        queues=SqsSiteQueues(sqs_client(), settings.dead_letters_url, settings.arn_prefix),
        peers=PeerQueues(settings.here.account),
        # The executor has one thread, because all messages change one registry and must be served in order.
        # A failed message is soon visible again. Otherwise it would block its message group for six minutes.
        reporter=make_reporter(settings.dead_letters_url, ThreadPoolExecutor(1)),
        documents={
            name: DynamoDocument(client=dynamodb_client(), table=settings.table, name=name, new_token=new_id)
            for name in (LINKS, PEERS, DECLARED, DYNAMIC, WATCH_DOCUMENT)
        },
        exchanges=ExchangeStore(
            DynamoChangeLog(client=dynamodb_client(), table=settings.table, name=EXCHANGES, new_token=new_id)
        ),
    )


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Serve a batch of peers' messages, a batch of ticks and reports, or one direct request."""
    try:
        parsed = parse_event(event, context, OPERATIONS)
        if not isinstance(parsed, Batch):
            return build_reply(apply_operation(parsed, context))
    except (BadConfiguration, SenderFault, QueueGone) as error:
        return build_error_reply(error)
    return handle_batch(parsed, context)


def handle_batch(batch: Batch, context: LambdaContext) -> BatchResponse:
    """Serve a batch of peers' messages in order, or of ticks and reports. Dead-letters malformed messages."""

    def apply_message(message: Message) -> None:
        try:
            if batch.fifo:
                receive_control_message(message, context)
            else:
                apply_operation(parse_request(message.body, OPERATIONS), context)
        except BadSnapshot:
            raise  # The site's own state is unreadable, which isn't the message's fault, so the message is redelivered.
        except BadConfiguration as error:
            raise Malformed(str(error)) from error

    return dependencies().reporter.serve(batch, apply_message)


def receive_control_message(message: Message, context: LambdaContext) -> None:
    """Process one control message of a peer, and schedule the next tick."""
    made, control_message = dependencies(), decode_control(message.body)
    link_service = made.make_link_service(context)
    dynamics = DynamicRouteService(link_service=link_service, document=made.documents[DYNAMIC])
    if isinstance(control_message, DynamicMessage):
        dynamics.receive(control_message, sender_id=message.sender_id)
    else:
        link_service.receive(control_message, sender_id=message.sender_id)
        dynamics.sync()
    report_and_arm_tick(link_service, dynamics, made.make_drift_repair(link_service))


def apply_operation(operation: FederationOperation, context: LambdaContext) -> object:
    """Apply an operation. If it changes the site, reconcile dynamic routes and schedule the next tick."""
    made = dependencies()
    link_service = made.make_link_service(context)
    dynamics, drift_repair = (
        DynamicRouteService(link_service=link_service, document=made.documents[DYNAMIC]),
        made.make_drift_repair(link_service),
    )
    sweeps = isinstance(operation, SweepSite)
    try:
        return made.make_operation_handler(link_service, dynamics, drift_repair).apply(operation)
    finally:
        # A sweep that raises an error for an invalid declaration has still done the rest of its work.
        if operation.changes:
            dynamics.sync(is_heartbeat=sweeps)
            report_and_arm_tick(link_service, dynamics, drift_repair)
        if sweeps and (registry := link_service.registry()).bridges:
            down = list_down_routes(registry)
            publish(SERVICE, {"RoutesDown": len(down)})  # An alarm watches this metric.
            if down:
                logger.warning("RoutesDown", routes=down)


def report_and_arm_tick(link_service: LinkService, dynamics: DynamicRouteService, drift_repair: DriftRepair) -> None:
    """Report repairs, publish the numbers of ignored ops of dynamic routes, and schedule the next tick."""
    for repair in drift_repair.repairs:
        logger.warning(
            "Repaired",
            resource=repair.resource,
            queue=repair.name,
            routes=repair.routes,
            lost_messages=repair.lost_messages,
        )
        publish(SERVICE, {"Repaired": 1, "MessagesLost": repair.lost_messages})
    for reason, number in dynamics.ignored.items():
        publish(SERVICE, {"OpsIgnored": number}, dimensions={"reason": reason})
    dependencies().arm_tick(link_service, drift_repair)


def find_route_filter_problem(filter_: Filter) -> str | None:
    """Return why routes can't have this filter; None if they can."""
    from sluice.federation.route_filters import find_filter_problem  # noqa: PLC0415 - patterns and jq compile where a route has some
    from sluice.splitting.jq_runner import compile_problem  # noqa: PLC0415 - see above

    return find_filter_problem(filter_, compile_problem=compile_problem)
