"""The rendezvous: its functions with what starts them, the clients' user, and the outputs that programs read.

Every role's statements stand here, whole: nothing is granted by a construct on the side.
"""

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from sluice.rendezvous.protocol.messages import ANSWER_QUEUE_PREFIX, RelayPattern
from sluice.rendezvous.settings import BrokerSettings, EventSettings, ProxySettings, TableSettings
from stacks.assets import Assets
from stacks.functions import CONSUME_ACTIONS, Functions, Plan, acknowledge_run_time_queues, allow, queue_arn
from stacks.parameters import Parameters
from stacks.state import BROKER_TIMEOUT, COUNTERS_TIMEOUT, StateStack

BATCH = 10  # messages of one event: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
PROXY_TIMEOUT = Duration.seconds(20)  # a poll is held for ten
SWEEPER_TIMEOUT = Duration.seconds(60)
SWEEP_EVERY = Duration.minutes(1)

BOOK_ACTIONS = ("Query", "GetItem", "PutItem", "UpdateItem", "DeleteItem")
SWEEP_ACTIONS = ("Query", "DeleteItem", "BatchWriteItem")
COUNTERS_ACTIONS = ("BatchGetItem", "PutItem", "UpdateItem")
EVENTS_BATCH = 1_000
COUNTERS_CONCURRENCY = 2  # the least there is: all of them write the same few items
COUNTRIES_FILE = "countries.mmdb"  # in a function's bundle
RUN_TIME_QUEUES = (ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX)


class RendezvousStack(Stack):
    """Stack `SluiceRendezvous`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: StateStack, assets: Assets) -> None:
        super().__init__(scope, "SluiceRendezvous", description="Sluice: the rendezvous over SQS and HTTP")
        self.state = state
        self.parameters = parameters
        self.answer_queues = queue_arn(self, f"{ANSWER_QUEUE_PREFIX}*")
        self.mailboxes = queue_arn(self, f"{MAILBOX_PREFIX}*")
        extras = ["functions", "geoip"] if parameters.rendezvous.geoip_file else ["functions"]
        self.functions = Functions.of(self, parameters, assets, extras=extras)
        broker_url = _proxy(self)
        _broker(self)
        _sweeper(self)
        if state.counters_queue is not None:
            _counters(self, state.counters_queue)
        _outputs(self, broker_url=broker_url, user=_client_user(self))


def _broker(stack: RendezvousStack) -> None:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="broker",
        timeout=BROKER_TIMEOUT,
        memory_mb=parameters.broker_memory_mb,
        settings=BrokerSettings(
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            timeouts_queue_url=state.timeouts_queue.queue_url,
            bridges=parameters.bridge_list,
            events=_events(stack),
        ),
        files=_country_files(stack),
        run_time_queues=RUN_TIME_QUEUES,
        allowed=_broker_statements(stack),
        # A tick re-arms itself while offers wait. Lambda would take that for a runaway loop and stop it at the 16th:
        # https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
        recursive_loop=lambda_.RecursiveLoop.ALLOW,
    )
    function = stack.functions.make(plan)
    for id_, queue in (("Offers", state.offers_queue), ("Timeouts", state.timeouts_queue)):
        lambda_.EventSourceMapping(
            stack,
            f"{id_}Trigger",
            target=function,
            event_source_arn=queue.queue_arn,
            batch_size=BATCH,
            report_batch_item_failures=True,
            max_concurrency=parameters.broker_max_concurrency,
        )


def _broker_statements(stack: RendezvousStack) -> list[iam.PolicyStatement]:
    state = stack.state
    offers, timeouts, dead_letters = state.offers_queue, state.timeouts_queue, state.dead_letters
    return [
        allow("dynamodb", BOOK_ACTIONS, state.table.table_arn),
        allow("sqs", CONSUME_ACTIONS, offers.queue_arn, timeouts.queue_arn),
        allow(
            "sqs",
            ["SendMessage"],
            timeouts.queue_arn,
            dead_letters.queue_arn,
            stack.answer_queues,
            stack.mailboxes,
        ),
        allow("sqs", ["CreateQueue"], stack.answer_queues),
        *_events_statements(stack),
    ]


def _proxy(stack: RendezvousStack) -> lambda_.FunctionUrl:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="proxy",
        timeout=PROXY_TIMEOUT,
        memory_mb=parameters.proxy_memory_mb,
        settings=ProxySettings(
            table=state.table.table_name,
            dead_letters_url=state.dead_letters.queue_url,
            bridges=parameters.bridge_list,
            allowed_relay_pattern=RelayPattern.parse(parameters.allowed_relay_pattern),
            held_proxies_min=parameters.held_proxies_min,
            held_proxies_max=parameters.held_proxies_max,
            events=_events(stack),
        ),
        files=_country_files(stack),
        run_time_queues=RUN_TIME_QUEUES,
        allowed=[
            allow("dynamodb", BOOK_ACTIONS, state.table.table_arn),
            allow("sqs", ["CreateQueue", "ReceiveMessage", "SendMessage"], stack.mailboxes),
            allow("sqs", ["SendMessage"], stack.answer_queues),
            *_events_statements(stack),
        ],
    )
    # Volunteers have no credentials: the protocol's broker is open to all.
    return stack.functions.make(plan).add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _sweeper(stack: RendezvousStack) -> None:
    state = stack.state
    plan = Plan(
        name="sweeper",
        timeout=SWEEPER_TIMEOUT,
        memory_mb=stack.parameters.rendezvous.sweeper_memory_mb,
        settings=TableSettings(table=state.table.table_name, dead_letters_url=state.dead_letters.queue_url),
        run_time_queues=RUN_TIME_QUEUES,
        allowed=[
            allow("dynamodb", SWEEP_ACTIONS, state.table.table_arn),
            allow("sqs", ["DeleteQueue"], stack.answer_queues, stack.mailboxes),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
        ],
        failures=state.dead_letters,
    )
    target = targets.LambdaFunction(stack.functions.make(plan))
    events.Rule(stack, "EveryMinute", schedule=events.Schedule.rate(SWEEP_EVERY), targets=[target])


def _counters(stack: RendezvousStack, queue: sqs.IQueue) -> None:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="counters",
        timeout=COUNTERS_TIMEOUT,
        memory_mb=parameters.counters_memory_mb,
        settings=TableSettings(table=state.table.table_name, dead_letters_url=state.dead_letters.queue_url),
        allowed=[
            allow("dynamodb", COUNTERS_ACTIONS, state.table.table_arn),
            allow("sqs", CONSUME_ACTIONS, queue.queue_arn),
            allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
        ],
    )
    lambda_.EventSourceMapping(
        stack,
        "CountersTrigger",
        target=stack.functions.make(plan),
        event_source_arn=queue.queue_arn,
        batch_size=EVENTS_BATCH,
        max_batching_window=Duration.seconds(parameters.counters_window_s),
        report_batch_item_failures=True,
        max_concurrency=COUNTERS_CONCURRENCY,
    )


def _events(stack: RendezvousStack) -> EventSettings | None:
    """What a function needs to publish what it sees; None where nothing is published."""
    parameters, federation = stack.parameters.rendezvous, stack.state.federation
    if parameters.events_exchange is None:
        return None
    return EventSettings(
        exchange=parameters.events_exchange,
        ingress_url=federation.ingresses[0].queue.queue_url,
        site=federation.site,
        geoip_file=COUNTRIES_FILE if parameters.geoip_file else None,
    )


def _events_statements(stack: RendezvousStack) -> list[iam.PolicyStatement]:
    if stack.parameters.rendezvous.events_exchange is None:
        return []
    return [allow("sqs", ["SendMessage"], stack.state.federation.ingresses[0].queue.queue_arn)]


def _country_files(stack: RendezvousStack) -> dict[str, str]:
    path = stack.parameters.rendezvous.geoip_file
    return {} if path is None else {COUNTRIES_FILE: path}


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
    acknowledge_run_time_queues(policy, [ANSWER_QUEUE_PREFIX])
    return user


def _outputs(stack: RendezvousStack, *, broker_url: lambda_.FunctionUrl, user: iam.User) -> None:
    state = stack.state
    outputs = {
        "OffersQueueUrl": state.offers_queue.queue_url,
        "BrokerUrl": broker_url.url,
        "ClientUserName": user.user_name,
        "TableName": state.table.table_name,
        "DeadLettersUrl": state.dead_letters.queue_url,
        "TimeoutsQueueUrl": state.timeouts_queue.queue_url,
    }
    for name, value in outputs.items():
        CfnOutput(stack, name, value=value)
