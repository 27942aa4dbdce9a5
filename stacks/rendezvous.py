"""The rendezvous: three functions with what starts them, the clients' user, and the outputs that programs read.

Every role's statements stand here, whole: nothing is granted by a construct on the side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aws_cdk import Acknowledgment, ArnFormat, CfnOutput, Duration, RemovalPolicy, Stack, Validations
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.rendezvous.broker import ANSWER_QUEUE_PREFIX
from sluice.rendezvous.mailbox import PREFIX as MAILBOX_PREFIX
from stacks.assets import Assets, Built, Target
from stacks.parameters import Architecture, Parameters
from stacks.state import BROKER_TIMEOUT, StateStack

BATCH = 10  # messages of one event: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
PROXY_TIMEOUT = Duration.seconds(20)  # a poll is held for ten
SWEEPER_TIMEOUT = Duration.seconds(60)
SWEEP_EVERY = Duration.minutes(1)
METRICS_NAMESPACE = "Sluice"

RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURES = {Architecture.ARM64: lambda_.Architecture.ARM_64, Architecture.X86_64: lambda_.Architecture.X86_64}
BOOK_ACTIONS = ("Query", "GetItem", "PutItem", "UpdateItem", "DeleteItem")
SWEEP_ACTIONS = ("Query", "DeleteItem", "BatchWriteItem")
# What an event source mapping does in a function's name.
CONSUME_ACTIONS = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one function differs from the others."""

    name: str
    timeout: Duration
    memory_mb: int
    environment: Mapping[str, str]
    allowed: Sequence[iam.PolicyStatement]
    failures: sqs.IQueue | None = None  # where Lambda puts an asynchronous event that it gave up
    recursive_loop: lambda_.RecursiveLoop | None = None


class RendezvousStack(Stack):
    """Stack `SluiceRendezvous`."""

    def __init__(self, scope: Construct, parameters: Parameters, *, state: StateStack, assets: Assets) -> None:
        super().__init__(scope, "SluiceRendezvous", description="Sluice: the rendezvous over SQS and HTTP")
        self.state = state
        self.parameters = parameters
        self.assets = assets
        self.target = Target.of(parameters.architecture)
        self.answer_queues = _queue_arn(self, f"{ANSWER_QUEUE_PREFIX}*")
        self.mailboxes = _queue_arn(self, f"{MAILBOX_PREFIX}*")
        self.layer = _layer(self)
        broker_url = _proxy(self)
        _broker(self)
        _sweeper(self)
        _outputs(self, broker_url=broker_url, user=_client_user(self))


def _queue_arn(stack: Stack, name: str) -> str:
    return stack.format_arn(service="sqs", resource=name, arn_format=ArnFormat.NO_RESOURCE_NAME)


def _layer(stack: RendezvousStack) -> lambda_.LayerVersion:
    bundle = stack.assets.bundle("functions")
    return lambda_.LayerVersion(
        stack,
        "Packages",
        code=_code(stack.assets.layer(bundle, stack.target)),
        compatible_runtimes=[RUNTIME],
        compatible_architectures=[ARCHITECTURES[stack.target.machine]],
    )


def _code(built: Built) -> lambda_.Code:
    return lambda_.Code.from_asset(str(built.folder), asset_hash=built.key)


def _broker(stack: RendezvousStack) -> None:
    state, parameters = stack.state, stack.parameters.rendezvous
    plan = Plan(
        name="broker",
        timeout=BROKER_TIMEOUT,
        memory_mb=parameters.broker_memory_mb,
        environment={"BRIDGES": parameters.bridges, "TIMEOUTS_QUEUE_URL": state.timeouts_queue.queue_url},
        allowed=_broker_statements(stack),
        # A tick re-arms itself while offers wait. Lambda would take that for a runaway loop and stop it at the 16th:
        # https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
        recursive_loop=lambda_.RecursiveLoop.ALLOW,
    )
    function = _function(stack, plan)
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
        _allow("dynamodb", BOOK_ACTIONS, state.table.table_arn),
        _allow("sqs", CONSUME_ACTIONS, offers.queue_arn, timeouts.queue_arn),
        _allow(
            "sqs",
            ["SendMessage"],
            timeouts.queue_arn,
            dead_letters.queue_arn,
            stack.answer_queues,
            stack.mailboxes,
        ),
        _allow("sqs", ["CreateQueue"], stack.answer_queues),
    ]


def _proxy(stack: RendezvousStack) -> lambda_.FunctionUrl:
    parameters = stack.parameters.rendezvous
    plan = Plan(
        name="proxy",
        timeout=PROXY_TIMEOUT,
        memory_mb=parameters.proxy_memory_mb,
        environment={
            "BRIDGES": parameters.bridges,
            "ALLOWED_RELAY_PATTERN": parameters.allowed_relay_pattern,
            "HELD_PROXIES_MIN": str(parameters.held_proxies_min),
            "HELD_PROXIES_MAX": str(parameters.held_proxies_max),
        },
        allowed=[
            _allow("dynamodb", BOOK_ACTIONS, stack.state.table.table_arn),
            _allow("sqs", ["CreateQueue", "ReceiveMessage", "SendMessage"], stack.mailboxes),
            _allow("sqs", ["SendMessage"], stack.answer_queues),
        ],
    )
    # Volunteers have no credentials: the protocol's broker is open to all.
    return _function(stack, plan).add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)


def _sweeper(stack: RendezvousStack) -> None:
    state = stack.state
    plan = Plan(
        name="sweeper",
        timeout=SWEEPER_TIMEOUT,
        memory_mb=stack.parameters.rendezvous.sweeper_memory_mb,
        environment={},
        allowed=[
            _allow("dynamodb", SWEEP_ACTIONS, state.table.table_arn),
            _allow("sqs", ["DeleteQueue"], stack.answer_queues, stack.mailboxes),
            _allow("sqs", ["SendMessage"], state.dead_letters.queue_arn),
        ],
        failures=state.dead_letters,
    )
    target = targets.LambdaFunction(_function(stack, plan))
    events.Rule(stack, "EveryMinute", schedule=events.Schedule.rate(SWEEP_EVERY), targets=[target])


def _client_user(stack: RendezvousStack) -> iam.User:
    """Whose access key clients share; keys are made by `sluice rendezvous creds`, never by a template."""
    user = iam.User(stack, "ClientUser")
    policy = iam.Policy(
        stack,
        "ClientPolicy",
        users=[user],
        statements=[
            _allow("sqs", ["SendMessage"], stack.state.offers_queue.queue_arn),
            _allow("sqs", ["ReceiveMessage", "GetQueueUrl"], stack.answer_queues),
        ],
    )
    _acknowledge_run_time_queues(policy, ANSWER_QUEUE_PREFIX)
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


def _function(stack: RendezvousStack, plan: Plan) -> lambda_.Function:
    id_ = plan.name.capitalize()
    log_group = _log_group(stack, f"{id_}Logs")
    function = lambda_.Function(
        stack,
        id_,
        runtime=RUNTIME,
        architecture=ARCHITECTURES[stack.target.machine],
        handler=f"functions.{plan.name}.handler.handler",
        code=_code(stack.assets.code(plan.name)),
        layers=[stack.layer],
        role=_role(stack, plan, log_group),
        log_group=log_group,
        timeout=plan.timeout,
        memory_size=plan.memory_mb,
        environment=_environment(stack, plan),
        dead_letter_queue=plan.failures,
        recursive_loop=plan.recursive_loop,
    )
    _acknowledge(function, "AwsSolutions-L1", "Bundles are built for one Python; a new one comes with its own release.")
    return function


def _environment(stack: RendezvousStack, plan: Plan) -> dict[str, str]:
    return {
        "RENDEZVOUS_TABLE": stack.state.table.table_name,
        "DEAD_LETTERS_URL": stack.state.dead_letters.queue_url,
        "POWERTOOLS_SERVICE_NAME": plan.name,
        "POWERTOOLS_METRICS_NAMESPACE": METRICS_NAMESPACE,
        "POWERTOOLS_LOG_LEVEL": stack.parameters.log_level.value,
        **plan.environment,
    }


def _log_group(stack: RendezvousStack, id_: str) -> logs.LogGroup:
    log_group = logs.LogGroup(stack, id_, removal_policy=RemovalPolicy.DESTROY)
    # The construct takes days only as words; the resource takes the number.
    cast("logs.CfnLogGroup", log_group.node.default_child).retention_in_days = stack.parameters.log_retention_days
    return log_group


def _role(stack: RendezvousStack, plan: Plan, log_group: logs.LogGroup) -> iam.IRole:
    # Not AWS's managed policy, which allows to write to every log group of the account.
    write_logs = _allow("logs", ["CreateLogStream", "PutLogEvents"], log_group.log_group_arn)
    role = iam.Role(
        stack,
        f"{plan.name.capitalize()}Role",
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        inline_policies={"Allowed": iam.PolicyDocument(statements=[*plan.allowed, write_logs])},
    )
    _acknowledge_run_time_queues(role, ANSWER_QUEUE_PREFIX, MAILBOX_PREFIX)
    # Constructs would add grants of their own, wider than ours.
    return role.without_policy_updates()


def _allow(service: str, actions: Sequence[str], *resources: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(actions=[f"{service}:{action}" for action in actions], resources=list(resources))


def _acknowledge_run_time_queues(construct: Construct, *prefixes: str) -> None:
    reason = "These queues are made at run time; the wildcard stands after the prefix that all their names have."
    for prefix in prefixes:
        queues = f"arn:<AWS::Partition>:sqs:<AWS::Region>:<AWS::AccountId>:{prefix}*"
        _acknowledge(construct, f"AwsSolutions-IAM5[Resource::{queues}]", reason)


def _acknowledge(construct: Construct, rule: str, reason: str) -> None:
    """Lets one finding of cdk-nag stand on one construct."""
    Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))
