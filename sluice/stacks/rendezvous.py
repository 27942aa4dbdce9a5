"""The rendezvous: its functions with what starts them, the clients' user, and the outputs that programs read.

Every role's statements stand here, whole: nothing is granted by a construct on the side.
"""

from aws_cdk import CfnOutput, Duration
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from sluice.rendezvous.counts.stream import FILTERS
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, RelayPattern
from sluice.rendezvous.settings import BrokerSettings, CountersSettings, EventSettings, MeetingSettings, ProxySettings
from sluice.stacks.alarms import FIVE_MINUTES, Capability, Rule, WatchedStack, alarm
from sluice.stacks.bundles.assets import Assets
from sluice.stacks.functions import (
    CONSUME_ACTIONS,
    STREAM_ACTIONS,
    Functions,
    Plan,
    acknowledge_run_time_queues,
    allow,
    every_minute,
    queue_arn,
    trigger,
    trigger_by_stream,
)
from sluice.stacks.parameters import Parameters
from sluice.stacks.state import BROKER_TIMEOUT, COUNTERS_TIMEOUT, StateStack
from sluice.stages import staged

PROXY_TIMEOUT = Duration.seconds(20)  # a poll is held for ten
SWEEPER_TIMEOUT = Duration.seconds(60)

BROKER_WAITING_ACTIONS = ("Query", "UpdateItem", "DeleteItem", "BatchWriteItem")
PROXY_ACTIONS = ("Query", "GetItem", "PutItem", "UpdateItem")
PROXY_WAITING_ACTIONS = (*BROKER_WAITING_ACTIONS, "PutItem")
SWEEP_ACTIONS = ("Query", "BatchWriteItem")
COUNTRIES_FILE = "countries.mmdb"  # in a function's bundle


class RendezvousStack(WatchedStack):
    """Stack `SluiceRendezvous`."""

    capability = Capability.RENDEZVOUS
    watched_by_age = frozenset({"Broker", "Counters"})

    def __init__(self, scope: Construct, parameters: Parameters, *, state: StateStack, assets: Assets) -> None:
        super().__init__(
            scope, staged("SluiceRendezvous", parameters.stage), description="Sluice: the rendezvous over SQS and HTTP"
        )
        self.state = state
        self.parameters = parameters
        # By its name alone: the stack of state may have two hundred exports, and has nearly as many.
        self.waiting_table = dynamodb.Table.from_table_name(self, "Waiting", state.waiting_table.table_name)
        stage = parameters.stage
        self.answer_queue_prefix = staged(ANSWER_QUEUE_PREFIX, stage)
        self.run_time_queues = (self.answer_queue_prefix, staged(MAILBOX_PREFIX, stage))
        self.answer_queues, self.mailboxes = (queue_arn(self, f"{prefix}*") for prefix in self.run_time_queues)
        countries = parameters.rendezvous.geoip_file
        self.country_files = {COUNTRIES_FILE: countries} if countries else {}
        extras = ["functions", "geoip"] if countries else ["functions"]
        self.functions = Functions.of(self, parameters, assets, extras=extras)
        broker_url = _proxy(self)
        _broker(self)
        sweeper = _sweeper(self)
        if parameters.rendezvous.events_exchange is not None:
            _counters(self, parameters.rendezvous.events_exchange)
        outputs = {
            "OffersQueueUrl": state.offers_queue.queue_url,
            "BrokerUrl": broker_url.url,
            "ClientUserName": _client_user(self).user_name,
            "TableName": state.table.table_name,
            "DeadLettersUrl": state.dead_letters.queue_url,
            "WaitingTableName": self.waiting_table.table_name,
            "SweeperFunctionName": sweeper.function_name,
        }
        for name, value in outputs.items():
            CfnOutput(self, name, value=value)


def _broker(stack: RendezvousStack) -> None:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="broker",
        timeout=BROKER_TIMEOUT,
        memory_mb=parameters.broker_memory_mb,
        settings=BrokerSettings(
            table=state.table.table_name,
            waiting_table=stack.waiting_table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            bridges=parameters.bridge_list,
            events=_events(stack),
            stage=stack.parameters.stage,
        ),
        files=stack.country_files,
        run_time_queues=stack.run_time_queues,
        allowed=[
            allow("dynamodb", ["PutItem"], state.table.table_arn),
            allow("dynamodb", BROKER_WAITING_ACTIONS, stack.waiting_table.table_arn),
            allow("sqs", CONSUME_ACTIONS, state.offers_queue.queue_arn),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn, stack.answer_queues, stack.mailboxes),
            allow("sqs", ["CreateQueue"], stack.answer_queues),
        ],
    )
    function = stack.functions.make(plan)
    trigger("Offers", function, state.offers_queue, concurrency=parameters.broker_max_concurrency)


def _proxy(stack: RendezvousStack) -> lambda_.FunctionUrl:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="proxy",
        timeout=PROXY_TIMEOUT,
        memory_mb=parameters.proxy_memory_mb,
        settings=ProxySettings(
            table=state.table.table_name,
            waiting_table=stack.waiting_table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            bridges=parameters.bridge_list,
            allowed_relay_pattern=RelayPattern.parse(parameters.allowed_relay_pattern),
            held_proxies_min=parameters.held_proxies_min,
            held_proxies_max=parameters.held_proxies_max,
            trusts_forwarded=parameters.trusted_proxy,
            events=_events(stack),
            stage=stack.parameters.stage,
        ),
        files=stack.country_files,
        run_time_queues=stack.run_time_queues,
        allowed=[
            allow("dynamodb", PROXY_ACTIONS, state.table.table_arn),
            allow("dynamodb", PROXY_WAITING_ACTIONS, stack.waiting_table.table_arn),
            allow("sqs", ["CreateQueue", "ReceiveMessage", "SendMessage"], stack.mailboxes),
            allow("sqs", ["SendMessage"], stack.answer_queues),
        ],
        # Anybody may call it, as often as they like.
        is_called_often=True,
        reserved_concurrency=parameters.proxy_max_concurrency,
    )
    # Volunteers have no credentials: the protocol's broker is open to all.
    function = stack.functions.make(plan)
    if parameters.proxy_max_concurrency is not None:
        _watch_concurrency(stack, function, most=parameters.proxy_max_concurrency)
    return function.add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _watch_concurrency(stack: RendezvousStack, function: lambda_.Function, *, most: int) -> None:
    percent = stack.parameters.operations.concurrency_percent
    text = f"Proxy functions use {percent} % of the {most} that may run at once: beyond them proxies are turned away"
    used = function.metric("ConcurrentExecutions", statistic="Maximum", period=FIVE_MINUTES)
    alarm(
        stack,
        Rule(
            name="ProxyConcurrency",
            text=text,
            metric=used,
            threshold=most * percent / 100,
            periods=2,
            capability=Capability.RENDEZVOUS,
        ),
    )


def _sweeper(stack: RendezvousStack) -> lambda_.Function:
    state = stack.state
    plan = Plan(
        name="sweeper",
        timeout=SWEEPER_TIMEOUT,
        memory_mb=stack.parameters.rendezvous.sweeper_memory_mb,
        settings=MeetingSettings(
            table=state.table.table_name,
            waiting_table=stack.waiting_table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            stage=stack.parameters.stage,
        ),
        run_time_queues=stack.run_time_queues,
        allowed=[
            allow("dynamodb", (*SWEEP_ACTIONS, "UpdateItem"), state.table.table_arn),
            allow("dynamodb", SWEEP_ACTIONS, stack.waiting_table.table_arn),
            allow("sqs", ["DeleteQueue"], stack.answer_queues, stack.mailboxes),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
            allow("sqs", ["GetQueueAttributes"], state.offers_queue.queue_arn, state.dead_letters.queue_arn),
        ],
        failures=state.dead_letters,
    )
    function = stack.functions.make(plan)
    every_minute(function)
    return function


def _counters(stack: RendezvousStack, exchange: str) -> None:
    state, parameters = stack.state, stack.parameters.rendezvous
    ingress = state.federation.ingresses[0].queue
    plan = Plan(
        name="counters",
        timeout=COUNTERS_TIMEOUT,
        memory_mb=parameters.counters_memory_mb,
        settings=CountersSettings(
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            exchange=exchange,
            ingress_url=ingress.queue_url,
            site=state.federation.site,
            federation_table=state.federation.table.table_name,
        ),
        wildcards={"*": "Lambda asks for streams by a call that takes no resource."},
        allowed=[
            allow("dynamodb", ["UpdateItem"], state.table.table_arn),
            allow("dynamodb", ["GetItem", "Query"], state.federation.table.table_arn),
            allow("dynamodb", STREAM_ACTIONS, state.stream_arn),
            allow("dynamodb", ["ListStreams"], "*"),
            allow("sqs", ["SendMessage"], ingress.queue_arn, state.dead_letters.queue_arn),
        ],
    )
    function = stack.functions.make(plan)
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
    threshold_ms = stack.parameters.operations.queue_age_s * 1000
    alarm(
        stack,
        Rule(
            name="CountersAge",
            text=text,
            metric=age,
            threshold=threshold_ms,
            periods=5,
            capability=Capability.RENDEZVOUS,
        ),
    )


def _events(stack: RendezvousStack) -> EventSettings | None:
    """Tell a function what it needs to tell of what it sees; None where nobody counts it."""
    parameters = stack.parameters.rendezvous
    if parameters.events_exchange is None:
        return None
    return EventSettings(site=stack.state.federation.site, geoip_file=COUNTRIES_FILE if parameters.geoip_file else None)


def _client_user(stack: RendezvousStack) -> iam.User:
    """Whose access key clients share; keys are made by `sluice rendezvous creds`, never by a template."""
    user = iam.User(stack, "ClientUser")
    policy = iam.Policy(
        stack,
        "ClientPolicy",
        users=[user],
        statements=[
            allow("sqs", ["SendMessage"], stack.state.offers_queue.queue_arn),
            allow("sqs", ["ReceiveMessage", "GetQueueUrl"], stack.answer_queues),
        ],
    )
    acknowledge_run_time_queues(policy, [stack.answer_queue_prefix])
    return user
