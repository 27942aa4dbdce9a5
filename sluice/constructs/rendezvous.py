"""Creates the rendezvous: its tables and queues, its functions with their triggers, and the clients' IAM user.

Every role's statements are in this module; no construct grants more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.codec import pick_shared_fields
from sluice.constructs import storage
from sluice.constructs.alarms import FIVE_MINUTES, AlarmRule, Capability, build_metric
from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.exchange import Exchange
from sluice.constructs.exchange_state import ExchangeState
from sluice.constructs.functions import (
    AT_RUN_TIME,
    CONSUME_ACTIONS,
    STREAM_ACTIONS,
    Functions,
    create_reader_alias,
    format_queue_arn,
    invoke_every_minute,
    trigger,
    trigger_by_stream,
)
from sluice.constructs.references import import_into
from sluice.constructs.roles import Statement, allow, allow_site_key, suppress_finding, suppress_wildcard_findings
from sluice.constructs.site_construct import NOTHING, SiteConstruct, StackOutput
from sluice.errors import BadConfiguration
from sluice.parameters import Parameters
from sluice.parameters.event_sources import Reading
from sluice.parameters.values import unique_construct_id
from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, RelayPattern
from sluice.rendezvous.settings import (
    BrokerSettings,
    CountersSettings,
    EventSettings,
    ProxySettings,
    RendezvousSettings,
)
from sluice.stages import add_stage_prefix

BROKER_TIMEOUT = Duration.seconds(10)
COUNTERS_TIMEOUT = Duration.seconds(30)
CLIENT_TIMEOUT = Duration.seconds(20)  # An offer over HTTP waits six seconds.
PROXY_TIMEOUT = Duration.seconds(20)  # A held poll takes ten seconds.
SWEEPER_TIMEOUT = Duration.seconds(60)

OFFERS_RETENTION = Duration.seconds(300)  # Snowflake's protocol sets five minutes.
# No offer is received this often before it expires, because dead letters must not contain addresses.
OFFER_MAX_RECEIVES = 10

BROKER_WAITING_ACTIONS = ("Query", "UpdateItem", "DeleteItem", "BatchWriteItem")
PROXY_ACTIONS = ("Query", "GetItem", "PutItem", "UpdateItem")
PROXY_WAITING_ACTIONS = (*BROKER_WAITING_ACTIONS, "PutItem")
SWEEP_ACTIONS = ("Query", "BatchWriteItem")
COUNTRIES_FILE = "countries.mmdb"  # Name of the country database in the functions' bundles.


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousState:
    """Resources that outlive the rendezvous' functions: tables, offers queue, dead-letter queue."""

    table: dynamodb.ITable
    waiting_table: dynamodb.ITable
    dead_letters: sqs.IQueue
    offers_queue: sqs.IQueue

    @classmethod
    def create(
        cls,
        scope: Construct,
        parameters: Parameters,
        *,
        offers_queue: sqs.IQueue | None = None,
    ) -> "RendezvousState":
        """Create the resources in `scope`. An existing offers queue is given as a construct or by its ARN."""
        rendezvous, keep = parameters.rendezvous, parameters.rendezvous.keep_state
        table = storage.create_table(scope, "Table", keep=keep, stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES)
        waiting_table = storage.create_temporary_table(scope, "WaitingTable")
        dead_letters = storage.create_queue(scope, "DeadLetters", keep=keep)
        if offers_queue is None and rendezvous.existing_offers_queue_arn:
            offers_queue = sqs.Queue.from_queue_arn(scope, "OffersQueue", rendezvous.existing_offers_queue_arn)
        if offers_queue is None:
            name = add_stage_prefix(rendezvous.offers_queue_name, parameters.stage)
            offers_queue = storage.create_queue(
                scope,
                unique_construct_id("OffersQueue", name),
                dead_letters=dead_letters,
                max_receives=OFFER_MAX_RECEIVES,
                visibility=storage.visibility_timeout(BROKER_TIMEOUT),
                retention=OFFERS_RETENTION,
                name=name,
            )
        else:
            reason = "Functions send dead letters here; an existing offers queue has its owner's redrive policy."
            suppress_finding(dead_letters, "AwsSolutions-SQS3", reason)
        return cls(table=table, waiting_table=waiting_table, dead_letters=dead_letters, offers_queue=offers_queue)

    @property
    def stream_arn(self) -> str:
        """The ARN of the stream of changes of the rendezvous table."""
        return str(self.table.table_stream_arn)


@check_arguments
class Rendezvous(SiteConstruct):
    """Receives clients' offers over SQS and HTTP, and matches the offers with volunteers' proxies.

    Only one rendezvous is allowed per stage, account and region, because clients know its offers queue by name.
    `offers_queue` is an existing queue; without it, a queue is created. With an `exchange`, events are counted and
    published there. `parameters` are those of section `rendezvous`. Raises `BadConfiguration`, with the construct's
    path.
    """

    capability = Capability.RENDEZVOUS
    stack_name: ClassVar[str] = "SluiceRendezvous"
    watched_by_age = frozenset({"Broker", "Counters"})

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        offers_queue: sqs.IQueue | None = None,
        exchange: Exchange | ExchangeState | None = None,
        state: RendezvousState | None = None,
        parameters: Mapping[str, object] | Parameters = NOTHING,
        assets: Assets | None = None,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create all resources of the rendezvous, and also the state unless another stack's `state` is given."""
        if exchange is None and not isinstance(parameters, Parameters):
            parameters = {"events_exchange": None, **parameters}
        super().__init__(scope, id_, "rendezvous", parameters, props)
        state = state or RendezvousState.create(self, self.parameters, offers_queue=offers_queue)
        self.state = import_into(self, state)
        self.federation = exchange.state if isinstance(exchange, Exchange) else exchange
        stage = self.parameters.stage
        self.answer_queues, self.mailboxes = (
            format_queue_arn(self.stack, f"{add_stage_prefix(prefix, stage)}*")
            for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX)
        )
        countries = self.parameters.rendezvous.geoip_file
        self.country_files = {COUNTRIES_FILE: countries} if countries else {}
        extras = ["functions", "geoip"] if countries else ["functions"]
        self.functions = Functions.create(self, assets or Assets(PROJECT), extras=extras)
        events_exchange, self.events = self.parameters.rendezvous.events_exchange, None
        if events_exchange is not None:
            if self.federation is None:
                raise BadConfiguration(f"{self.node.path}: events_exchange needs an exchange")
            self.events = EventSettings(site=self.federation.site, geoip_file=COUNTRIES_FILE if countries else None)
        # The broker, client, proxy and sweeper functions share these settings.
        self.settings: Mapping[str, Any] = {
            "table": self.state.table.table_name,
            "waiting_table": self.state.waiting_table.table_name,
            "dead_letters_url": self.state.dead_letters.queue_url,
            "stage": stage,
        }
        self.url = _create_proxy(self)
        self.client_url = _create_client(self)
        _create_broker(self)
        sweeper = _create_sweeper(self)
        if events_exchange is not None and self.federation is not None:
            _create_counters(self, events_exchange, self.federation)
        # Clients share this user's access keys, which only `sluice rendezvous creds` creates.
        self.client_user = iam.User(self, "ClientUser")
        allowed = [
            allow("sqs", ["SendMessage"], self.offers_queue.queue_arn),
            _allow_run_time_queues(["ReceiveMessage", "GetQueueUrl"], self.answer_queues),
            *allow_site_key(self),
        ]
        # Any user's key can get STS session credentials, which may outlive the key by 36 hours; clients need none.
        # https://docs.aws.amazon.com/IAM/latest/UserGuide/id_credentials_temp_control-access_disable-perms.html
        no_sessions = iam.PolicyStatement(
            effect=iam.Effect.DENY,
            actions=["sqs:*"],
            resources=["*"],
            conditions={"Null": {"aws:TokenIssueTime": "false"}},
        )
        statements = [*(statement.for_policy() for statement in allowed), no_sessions]
        policy = iam.Policy(self, "ClientPolicy", users=[self.client_user], statements=statements)
        suppress_wildcard_findings(policy, allowed)
        outputs = {
            "OffersQueueUrl": self.offers_queue.queue_url,
            "BrokerUrl": self.function_url,
            "ClientUrl": self.client_url.url,
            "ClientUserName": self.client_user.user_name,
            "TableName": self.state.table.table_name,
            "DeadLettersUrl": self.state.dead_letters.queue_url,
            "WaitingTableName": self.state.waiting_table.table_name,
            "SweeperFunctionName": sweeper.function_name,
        }
        self.home.publish(self, [StackOutput(name=name, value=value) for name, value in outputs.items()])

    @property
    def offers_queue(self) -> sqs.IQueue:
        """The queue to which clients send their offers."""
        return self.state.offers_queue

    @property
    def function_url(self) -> str:
        """The broker's URL for proxies. `client_url` is the URL for clients over HTTP."""
        return self.url.url

    def grant_offer(self, grantee: iam.IGrantable) -> iam.Grant:
        """Allow a principal to act as a client: send offers, and read answer queues."""
        return iam.Grant.add_to_principal(
            grantee=grantee, actions=["sqs:SendMessage"], resource_arns=[self.offers_queue.queue_arn]
        ).combine(
            iam.Grant.add_to_principal(
                grantee=grantee,
                actions=["sqs:ReceiveMessage", "sqs:GetQueueUrl"],
                resource_arns=[self.answer_queues],
            )
        )

    def metric(self, name: str, *, service: str = "broker", statistic: str = "Sum") -> cloudwatch.Metric:
        """Return a metric of one of the rendezvous' functions; docs/operations.md lists the names."""
        return build_metric(name, service, stage=self.parameters.stage, statistic=statistic)


def _create_broker(construct: Rendezvous) -> None:
    state, parameters = construct.state, construct.parameters.rendezvous
    function = construct.functions.create_function(
        "broker",
        timeout=BROKER_TIMEOUT,
        memory_mb=parameters.broker_memory_mb,
        settings=BrokerSettings(**construct.settings, bridges=parameters.bridge_list, events=construct.events),
        files=construct.country_files,
        allowed=[
            allow("dynamodb", ["GetItem", "PutItem", "UpdateItem"], state.table.table_arn),
            allow("dynamodb", BROKER_WAITING_ACTIONS, state.waiting_table.table_arn),
            allow("sqs", CONSUME_ACTIONS, state.offers_queue.queue_arn),
            _allow_run_time_queues(
                ["SendMessage"], state.dead_letters.queue_arn, construct.answer_queues, construct.mailboxes
            ),
            _allow_run_time_queues(["CreateQueue"], construct.answer_queues),
        ],
        is_called_often=True,
    )
    trigger("Offers", function, state.offers_queue, reading=Reading(max_concurrency=parameters.broker_max_concurrency))


def _create_proxy(construct: Rendezvous) -> lambda_.FunctionUrl:
    state, parameters = construct.state, construct.parameters.rendezvous
    held_min, held_max = construct.parameters.held_polls_range
    function = construct.functions.create_function(
        "proxy",
        timeout=PROXY_TIMEOUT,
        memory_mb=parameters.proxy_memory_mb,
        settings=ProxySettings(
            **{
                **pick_shared_fields(parameters, ProxySettings),
                **construct.settings,
                "offers_url": state.offers_queue.queue_url,
                "allowed_relay_pattern": RelayPattern.parse(parameters.allowed_relay_pattern),
                "held_proxies_min": held_min,
                "held_proxies_max": held_max,
                "events": construct.events,
            }
        ),
        files=construct.country_files,
        allowed=[
            allow("dynamodb", PROXY_ACTIONS, state.table.table_arn),
            allow("dynamodb", PROXY_WAITING_ACTIONS, state.waiting_table.table_arn),
            _allow_run_time_queues(["CreateQueue", "ReceiveMessage", "SendMessage"], construct.mailboxes),
            _allow_run_time_queues(["SendMessage"], construct.answer_queues),
            allow("sqs", ["DeleteMessage"], state.offers_queue.queue_arn),
        ],
        # Any proxy may call this URL, at any rate.
        is_called_often=True,
        reserved_concurrency=parameters.proxy_max_concurrency,
    )
    if (most := parameters.proxy_max_concurrency) is not None:
        percent = construct.parameters.operations.concurrency_percent
        construct.watch(
            AlarmRule(
                name="ProxyConcurrency",
                text=f"{percent} % of the proxy function's {most} concurrent executions are in use: above it, polls are"
                " refused",
                metric=function.metric("ConcurrentExecutions", statistic="Maximum", period=FIVE_MINUTES),
                threshold=most * percent / 100,
                periods=2,
                capability=Capability.RENDEZVOUS,
            )
        )
    # Volunteers have no credentials: the protocol's broker is open to all.
    return function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _create_client(construct: Rendezvous) -> lambda_.FunctionUrl:
    state, parameters = construct.state, construct.parameters.rendezvous
    function = construct.functions.create_function(
        "client",
        timeout=CLIENT_TIMEOUT,
        memory_mb=parameters.client_memory_mb,
        settings=BrokerSettings(**construct.settings, bridges=parameters.bridge_list, events=construct.events),
        files=construct.country_files,
        allowed=[
            allow("dynamodb", ["PutItem", "UpdateItem"], state.table.table_arn),
            allow("dynamodb", BROKER_WAITING_ACTIONS, state.waiting_table.table_arn),
            _allow_run_time_queues(["CreateQueue", "ReceiveMessage", "SendMessage"], construct.mailboxes),
        ],
        # Anybody may call this URL at any rate, and each call takes seconds. So clients have their own reserve.
        is_called_often=True,
        reserved_concurrency=parameters.client_max_concurrency,
    )
    # Clients over HTTP have no credentials.
    return function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _create_sweeper(construct: Rendezvous) -> lambda_.Function:
    state = construct.state
    function = construct.functions.create_function(
        "sweeper",
        timeout=SWEEPER_TIMEOUT,
        memory_mb=construct.parameters.rendezvous.sweeper_memory_mb,
        settings=RendezvousSettings(**construct.settings),
        allowed=[
            allow("dynamodb", (*SWEEP_ACTIONS, "UpdateItem"), state.table.table_arn),
            allow("dynamodb", (*SWEEP_ACTIONS, "Scan", "DeleteItem"), state.waiting_table.table_arn),
            _allow_run_time_queues(["DeleteQueue"], construct.answer_queues, construct.mailboxes),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
            allow("sqs", ["GetQueueAttributes"], state.offers_queue.queue_arn, state.dead_letters.queue_arn),
        ],
        failures=state.dead_letters,
    )
    invoke_every_minute(function)
    create_reader_alias(function)
    return function


def _create_counters(construct: Rendezvous, exchange: str, federation: ExchangeState) -> None:
    state, parameters = construct.state, construct.parameters.rendezvous
    ingress = import_into(construct, federation.ingresses[0].queue)
    federation_table = import_into(construct, federation.table)
    function = construct.functions.create_function(
        "counters",
        timeout=COUNTERS_TIMEOUT,
        memory_mb=parameters.counters_memory_mb,
        settings=CountersSettings(
            table=state.table.table_name,
            exchange=exchange,
            ingress_url=ingress.queue_url,
            site=federation.site,
            federation_table=federation_table.table_name,
        ),
        allowed=[
            allow("dynamodb", ["UpdateItem"], state.table.table_arn),
            allow("dynamodb", ["GetItem", "Query"], federation_table.table_arn),
            allow("dynamodb", STREAM_ACTIONS, state.stream_arn),
            allow("dynamodb", ["ListStreams"], "*", wildcards="Lambda's call for streams takes no resource."),
            allow("sqs", ["SendMessage"], ingress.queue_arn, state.dead_letters.queue_arn),
        ],
    )
    trigger_by_stream(
        "CountersStream",
        function,
        state.stream_arn,
        filters=FILTERS,
        window_s=parameters.counters_window_s,
        failures=state.dead_letters,
    )
    text = "Rendezvous events wait too long for the counters function: check its throttles and errors"
    age = function.metric("IteratorAge", statistic="Maximum", period=Duration.minutes(1))
    threshold_ms = construct.parameters.operations.queue_age_s * 1000
    construct.watch(
        AlarmRule(
            name="CountersAge",
            text=text,
            metric=age,
            threshold=threshold_ms,
            periods=5,
            capability=Capability.RENDEZVOUS,
        ),
    )


def _allow_run_time_queues(actions: Sequence[str], *queues: str) -> Statement:
    """Create a statement for queues, including queues that are created at run time."""
    return allow("sqs", actions, *queues, wildcards=AT_RUN_TIME)
