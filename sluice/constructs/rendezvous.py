"""The rendezvous: its tables and queues, its functions with what starts them, the clients' user.

Every role's statements stand here, whole: nothing is granted by a construct on the side.
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
from sluice.constructs import storage
from sluice.constructs.alarms import FIVE_MINUTES, Capability, Rule, ours
from sluice.constructs.exchange import Exchange
from sluice.constructs.exchange_state import ExchangeState
from sluice.constructs.functions import (
    AT_RUN_TIME,
    CONSUME_ACTIONS,
    STREAM_ACTIONS,
    Functions,
    FunctionSpec,
    every_minute,
    queue_arn,
    trigger,
    trigger_by_stream,
)
from sluice.constructs.roles import Statement, acknowledge, acknowledge_wildcards, allow
from sluice.constructs.site_construct import NOTHING, Output, SiteConstruct, SiteProps, parameters_of
from sluice.errors import BadConfiguration
from sluice.parameters import Parameters
from sluice.parameters.values import exact_id_of
from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, RelayPattern
from sluice.rendezvous.settings import BrokerSettings, CountersSettings, EventSettings, MeetingSettings, ProxySettings
from sluice.stages import staged

BROKER_TIMEOUT = Duration.seconds(10)
COUNTERS_TIMEOUT = Duration.seconds(30)
PROXY_TIMEOUT = Duration.seconds(20)  # a poll is held for ten
SWEEPER_TIMEOUT = Duration.seconds(60)

OFFERS_RETENTION = Duration.seconds(300)  # the protocol's
OFFER_RECEIVES = 10  # more than its retention has time for: SQS would move an offer as it is, with its addresses

BROKER_WAITING_ACTIONS = ("Query", "UpdateItem", "DeleteItem", "BatchWriteItem")
PROXY_ACTIONS = ("Query", "GetItem", "PutItem", "UpdateItem")
PROXY_WAITING_ACTIONS = (*BROKER_WAITING_ACTIONS, "PutItem")
SWEEP_ACTIONS = ("Query", "BatchWriteItem")
COUNTRIES_FILE = "countries.mmdb"  # in a function's bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousState:
    """What outlives the functions: tables, the offers queue, dead letters."""

    table: dynamodb.Table
    waiting_table: dynamodb.Table
    dead_letters: sqs.Queue
    offers_queue: sqs.IQueue

    @classmethod
    def made(
        cls,
        scope: Construct,
        parameters: Parameters,
        *,
        offers_queue: sqs.IQueue | None = None,
    ) -> "RendezvousState":
        """Make it in `scope`, but for an offers queue that is given, as a construct or by its ARN."""
        given, keep = parameters.rendezvous, parameters.rendezvous.keep_state
        table = storage.table(scope, "Table", keep=keep, stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES)
        waiting_table = storage.passing_table(scope, "WaitingTable")
        dead_letters = storage.queue(scope, "DeadLetters", keep=keep)
        if offers_queue is None and given.existing_offers_queue_arn:
            offers_queue = sqs.Queue.from_queue_arn(scope, "OffersQueue", given.existing_offers_queue_arn)
        if offers_queue is None:
            name = staged(given.offers_queue_name, parameters.stage)
            offers_queue = storage.queue(
                scope,
                exact_id_of("OffersQueue", name),  # who reads another one is deployed anew
                dead_letters=dead_letters,
                receives=OFFER_RECEIVES,
                visibility=storage.visibility(BROKER_TIMEOUT),
                retention=OFFERS_RETENTION,
                name=name,
            )
        else:
            reason = "Functions send dead letters to it; the redrive of a queue that was made elsewhere is its owner's."
            acknowledge(dead_letters, "AwsSolutions-SQS3", reason)
        return cls(table=table, waiting_table=waiting_table, dead_letters=dead_letters, offers_queue=offers_queue)

    @property
    def stream_arn(self) -> str:
        """Of the table's changes."""
        return str(self.table.table_stream_arn)


class Rendezvous(SiteConstruct):
    """Clients' offers over SQS and HTTP, and the volunteers' proxies that take them.

    An account and region has one for a stage, as clients know its offers queue by name. `offers_queue` is yours, or
    made; with an `exchange`, what happens is counted and published there. `parameters` are those of section
    `rendezvous`. Raises `BadConfiguration` for what it can't be made of, with the construct's path.
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
        """Make it all. `state` is what another stack keeps; else it is made here."""
        if exchange is None and not isinstance(parameters, Parameters):
            parameters = {"events_exchange": None, **parameters}
        super().__init__(scope, id_, parameters_of(scope, id_, "rendezvous", parameters, props))
        self.state = state or RendezvousState.made(self, self.parameters, offers_queue=offers_queue)
        self.federation = exchange.state if isinstance(exchange, Exchange) else exchange
        # By its name alone: a stack of state may have two hundred exports, and ours has nearly as many.
        self.waiting_table = dynamodb.Table.from_table_name(self, "Waiting", self.state.waiting_table.table_name)
        stage = self.parameters.stage
        self.answer_queues, self.mailboxes = (
            queue_arn(self.stack, f"{staged(prefix, stage)}*") for prefix in (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX)
        )
        countries = self.parameters.rendezvous.geoip_file
        self.country_files = {COUNTRIES_FILE: countries} if countries else {}
        extras = ["functions", "geoip"] if countries else ["functions"]
        self.functions = Functions.of(self, assets or Assets(PROJECT), extras=extras)
        self.url = _proxy(self)
        _broker(self)
        sweeper = _sweeper(self)
        if self.parameters.rendezvous.events_exchange is not None:
            _counters(self, self.parameters.rendezvous.events_exchange)
        self.client_user = _client_user(self)
        outputs = {
            "OffersQueueUrl": self.offers_queue.queue_url,
            "BrokerUrl": self.function_url,
            "ClientUserName": self.client_user.user_name,
            "TableName": self.state.table.table_name,
            "DeadLettersUrl": self.state.dead_letters.queue_url,
            "WaitingTableName": self.waiting_table.table_name,
            "SweeperFunctionName": sweeper.function_name,
        }
        self.home.publish(self, [Output(name=name, value=value) for name, value in outputs.items()])

    @property
    def offers_queue(self) -> sqs.IQueue:
        """The queue that clients send their offers to."""
        return self.state.offers_queue

    @property
    def function_url(self) -> str:
        """The broker's URL, for proxies and for clients over HTTP."""
        return self.url.url

    def grant_offer(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let somebody be a client: send offers, and read answer queues."""
        return iam.Grant.add_to_principal(
            grantee=grantee, actions=["sqs:SendMessage"], resource_arns=[self.offers_queue.queue_arn]
        ).combine(
            iam.Grant.add_to_principal(
                grantee=grantee,
                actions=["sqs:ReceiveMessage", "sqs:GetQueueUrl"],
                resource_arns=[self.answer_queues],
            )
        )

    def metric(self, name: str, *, of: str = "broker", statistic: str = "Sum") -> cloudwatch.Metric:
        """Give a metric of a function of its own: see docs/operations.md for their names."""
        return ours(name, of, stage=self.parameters.stage, statistic=statistic)


def _broker(made: Rendezvous) -> None:
    state, parameters = made.state, made.parameters.rendezvous
    plan = FunctionSpec(
        name="broker",
        timeout=BROKER_TIMEOUT,
        memory_mb=parameters.broker_memory_mb,
        settings=BrokerSettings(**_shared_settings(made), bridges=parameters.bridge_list, events=_events(made)),
        files=made.country_files,
        allowed=[
            allow("dynamodb", ["PutItem"], state.table.table_arn),
            allow("dynamodb", BROKER_WAITING_ACTIONS, made.waiting_table.table_arn),
            allow("sqs", CONSUME_ACTIONS, state.offers_queue.queue_arn),
            _allow_run_time_queues(["SendMessage"], state.dead_letters.queue_arn, made.answer_queues, made.mailboxes),
            _allow_run_time_queues(["CreateQueue"], made.answer_queues),
        ],
    )
    function = made.functions.make(plan)
    trigger("Offers", function, state.offers_queue, concurrency=parameters.broker_max_concurrency)


def _proxy(made: Rendezvous) -> lambda_.FunctionUrl:
    state, parameters = made.state, made.parameters.rendezvous
    plan = FunctionSpec(
        name="proxy",
        timeout=PROXY_TIMEOUT,
        memory_mb=parameters.proxy_memory_mb,
        settings=ProxySettings(
            **_shared_settings(made),
            bridges=parameters.bridge_list,
            allowed_relay_pattern=RelayPattern.parse(parameters.allowed_relay_pattern),
            held_proxies_min=parameters.held_proxies_min,
            held_proxies_max=parameters.held_proxies_max,
            trusts_forwarded=parameters.trusted_proxy,
            events=_events(made),
        ),
        files=made.country_files,
        allowed=[
            allow("dynamodb", PROXY_ACTIONS, state.table.table_arn),
            allow("dynamodb", PROXY_WAITING_ACTIONS, made.waiting_table.table_arn),
            _allow_run_time_queues(["CreateQueue", "ReceiveMessage", "SendMessage"], made.mailboxes),
            _allow_run_time_queues(["SendMessage"], made.answer_queues),
        ],
        # Anybody may call it, as often as they like.
        is_called_often=True,
        reserved_concurrency=parameters.proxy_max_concurrency,
    )
    # Volunteers have no credentials: the protocol's broker is open to all.
    function = made.functions.make(plan)
    if parameters.proxy_max_concurrency is not None:
        _watch_concurrency(made, function, most=parameters.proxy_max_concurrency)
    return function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _watch_concurrency(made: Rendezvous, function: lambda_.Function, *, most: int) -> None:
    percent = made.parameters.operations.concurrency_percent
    text = f"Proxy functions use {percent} % of the {most} that may run at once: beyond them proxies are turned away"
    used = function.metric("ConcurrentExecutions", statistic="Maximum", period=FIVE_MINUTES)
    made.watch(
        Rule(
            name="ProxyConcurrency",
            text=text,
            metric=used,
            threshold=most * percent / 100,
            periods=2,
            capability=Capability.RENDEZVOUS,
        )
    )


def _sweeper(made: Rendezvous) -> lambda_.Function:
    state = made.state
    plan = FunctionSpec(
        name="sweeper",
        timeout=SWEEPER_TIMEOUT,
        memory_mb=made.parameters.rendezvous.sweeper_memory_mb,
        settings=MeetingSettings(**_shared_settings(made)),
        allowed=[
            allow("dynamodb", (*SWEEP_ACTIONS, "UpdateItem"), state.table.table_arn),
            allow("dynamodb", SWEEP_ACTIONS, made.waiting_table.table_arn),
            _allow_run_time_queues(["DeleteQueue"], made.answer_queues, made.mailboxes),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
            allow("sqs", ["GetQueueAttributes"], state.offers_queue.queue_arn, state.dead_letters.queue_arn),
        ],
        failures=state.dead_letters,
    )
    function = made.functions.make(plan)
    every_minute(function)
    return function


def _counters(made: Rendezvous, exchange: str) -> None:
    state, federation, parameters = made.state, _federation(made), made.parameters.rendezvous
    ingress = federation.ingresses[0].queue
    plan = FunctionSpec(
        name="counters",
        timeout=COUNTERS_TIMEOUT,
        memory_mb=parameters.counters_memory_mb,
        settings=CountersSettings(
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            exchange=exchange,
            ingress_url=ingress.queue_url,
            site=federation.site,
            federation_table=federation.table.table_name,
        ),
        allowed=[
            allow("dynamodb", ["UpdateItem"], state.table.table_arn),
            allow("dynamodb", ["GetItem", "Query"], federation.table.table_arn),
            allow("dynamodb", STREAM_ACTIONS, state.stream_arn),
            allow("dynamodb", ["ListStreams"], "*", wildcards="Lambda's call for streams takes no resource."),
            allow("sqs", ["SendMessage"], ingress.queue_arn, state.dead_letters.queue_arn),
        ],
    )
    function = made.functions.make(plan)
    trigger_by_stream(
        "CountersStream",
        function,
        state.stream_arn,
        filters=FILTERS,
        window_s=parameters.counters_window_s,
        failures=state.dead_letters,
    )
    text = "Rendezvous events wait for the counters: is the function throttled, does it fail?"
    age = function.metric("IteratorAge", statistic="Maximum", period=Duration.minutes(1))
    threshold_ms = made.parameters.operations.queue_age_s * 1000
    made.watch(
        Rule(
            name="CountersAge",
            text=text,
            metric=age,
            threshold=threshold_ms,
            periods=5,
            capability=Capability.RENDEZVOUS,
        ),
    )


def _shared_settings(made: Rendezvous) -> Mapping[str, Any]:
    """Tell what broker, proxy and sweeper are told."""
    return {
        "table": made.state.table.table_name,
        "waiting_table": made.waiting_table.table_name,
        "dead_letters_url": made.state.dead_letters.queue_url,
        "stage": made.parameters.stage,
    }


def _events(made: Rendezvous) -> EventSettings | None:
    """Tell a function what it needs to tell of what it sees; None where nobody counts it."""
    parameters = made.parameters.rendezvous
    if parameters.events_exchange is None:
        return None
    return EventSettings(site=_federation(made).site, geoip_file=COUNTRIES_FILE if parameters.geoip_file else None)


def _federation(made: Rendezvous) -> ExchangeState:
    if made.federation is None:
        raise BadConfiguration(f"{made.node.path}: events_exchange needs an exchange")
    return made.federation


def _client_user(made: Rendezvous) -> iam.User:
    """Whose access key clients share; keys are made by `sluice rendezvous creds`, never by a template."""
    user = iam.User(made, "ClientUser")
    allowed = [
        allow("sqs", ["SendMessage"], made.state.offers_queue.queue_arn),
        _allow_run_time_queues(["ReceiveMessage", "GetQueueUrl"], made.answer_queues),
    ]
    statements = [statement.for_policy() for statement in allowed]
    acknowledge_wildcards(iam.Policy(made, "ClientPolicy", users=[user], statements=statements), allowed)
    return user


def _allow_run_time_queues(actions: Sequence[str], *queues: str) -> Statement:
    """Allow actions on queues some of which are made at run time."""
    return allow("sqs", actions, *queues, wildcards=AT_RUN_TIME)
