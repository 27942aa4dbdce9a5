"""How every function is made: its code and layer, a role that allows what its plan says and nothing else, its log.

Every role's statements stand whole where the function is made: nothing is granted by a construct on the side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aws_cdk import ArnFormat, Duration, RemovalPolicy, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as event_sources
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from sluice.bundles.assets import Assets, Built, Target
from sluice.constructs import roles, stored
from sluice.constructs.alarms import METRICS_NAMESPACE
from sluice.constructs.roles import Statement, acknowledge, allow
from sluice.constructs.site_construct import SiteConstruct
from sluice.parameters import Architecture, Parameters
from sluice.settings import Settings
from sluice.stages import staged

TRACE_ACTIONS = ("PutTraceSegments", "PutTelemetryRecords")

RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURES = {Architecture.ARM64: lambda_.Architecture.ARM_64, Architecture.X86_64: lambda_.Architecture.X86_64}

# Of a batch without a window, and all that a FIFO queue gives:
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
SMALL_BATCH = 10
STREAM_BATCH = 1_000  # of the 10,000 that Lambda gives; all of them together have 6 MB
STREAM_ATTEMPTS = 100  # beside the first: with Lambda's pauses an hour or more
STREAM_AGE = Duration.hours(12)  # of the 24 that a stream keeps
LEAST_CONCURRENCY = 2  # https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html
AT_RUN_TIME = "These queues are made at run time; the wildcard stands after the prefix that all their names have."
# What an event source mapping does in a function's name, and what lets failed messages come again soon.
CONSUME_ACTIONS = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
STREAM_ACTIONS = ("DescribeStream", "GetRecords", "GetShardIterator")  # of a mapping of a stream


# https://docs.aws.amazon.com/lambda/latest/dg/monitoring-cloudwatchlogs-advanced.html
ONLY_OUR_OWN_LINES: Mapping[str, Any] = {
    "logging_format": lambda_.LoggingFormat.JSON,
    "system_log_level_v2": lambda_.SystemLogLevel.WARN,
    "application_log_level_v2": lambda_.ApplicationLogLevel.TRACE,  # it is ours that decides
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """How one function differs from the others."""

    name: str
    timeout: Duration
    memory_mb: int
    settings: Settings
    allowed: Sequence[Statement]
    failures: sqs.IQueue | None = None  # where Lambda puts an asynchronous event that it gave up
    recursive_loop: lambda_.RecursiveLoop | None = None
    is_called_often: bool = False  # so often that Lambda's own lines about each call would cost more than the calls
    reserved_concurrency: int | None = None  # that nobody else has, and at most; None is what is there
    files: Mapping[str, str] = field(default_factory=dict)  # beside the code: name to path in the project


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Makes the functions of one capability, which share a layer."""

    scope: SiteConstruct
    parameters: Parameters
    assets: Assets
    target: Target
    layer: lambda_.LayerVersion

    @classmethod
    def of(cls, scope: SiteConstruct, assets: Assets, *, extras: Sequence[str]) -> "Functions":
        """`extras` are those of pyproject.toml whose packages the layer has."""
        target = Target.of(scope.parameters.architecture)
        layer = lambda_.LayerVersion(
            scope,
            "Packages",
            code=_code(assets.layer(assets.bundle(*extras), target)),
            compatible_runtimes=[RUNTIME],
            compatible_architectures=[ARCHITECTURES[target.machine]],
        )
        return cls(scope=scope, parameters=scope.parameters, assets=assets, target=target, layer=layer)

    def make(self, plan: FunctionSpec) -> lambda_.Function:
        """Make one function."""
        id_, home = plan.name.capitalize(), self.scope.home
        kept = stored.parameters(self.scope, home.name, plan.name, plan.settings.stored())
        logs_ = log_group(self.scope, f"{id_}Logs", days=self.parameters.log_retention_days)
        function = lambda_.Function(
            self.scope,
            id_,
            function_name=home.name_of(id_),
            runtime=RUNTIME,
            architecture=ARCHITECTURES[self.target.machine],
            handler=f"functions.{plan.name}.handler.handler",
            code=_code(self.assets.code(beside=plan.files)),
            layers=[self.layer],
            role=self._role(plan, logs_, reads=stored.names(home.stack, home.name, plan.name) if kept else None),
            log_group=logs_,
            timeout=plan.timeout,
            memory_size=plan.memory_mb,
            environment={
                "POWERTOOLS_SERVICE_NAME": plan.name,
                "POWERTOOLS_METRICS_NAMESPACE": staged(METRICS_NAMESPACE, self.parameters.stage),
                "POWERTOOLS_LOG_LEVEL": self.parameters.log_level.value,
                **plan.settings.environment(stored_under=kept),
            },
            dead_letter_queue=plan.failures,
            recursive_loop=plan.recursive_loop,
            reserved_concurrent_executions=plan.reserved_concurrency,
            **(ONLY_OUR_OWN_LINES if plan.is_called_often else {}),
            tracing=lambda_.Tracing.ACTIVE if self.parameters.operations.tracing else None,
        )
        acknowledge(
            function, "AwsSolutions-L1", "Bundles are built for one Python; a new one comes with its own release."
        )
        return function

    def _role(self, plan: FunctionSpec, logs_: logs.LogGroup, *, reads: str | None) -> iam.IRole:
        tracing = self.parameters.operations.tracing
        # Not AWS's managed policy, which allows to write to every log group of the account.
        write_logs = allow("logs", ["CreateLogStream", "PutLogEvents"], logs_.log_group_arn)
        no_resource = "X-Ray takes segments from a role, for no resource."
        traces = [allow("xray", TRACE_ACTIONS, "*", wildcards=no_resource)] if tracing else []
        settings = [allow("ssm", ["GetParameters"], reads, wildcards=stored.OWN)] if reads else []
        role = roles.role(
            self.scope,
            f"{plan.name.capitalize()}Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            allowed=[*plan.allowed, *settings, write_logs, *traces],
        )
        # Constructs would add grants of their own, wider than ours.
        return role.without_policy_updates()


def _code(built: Built) -> lambda_.Code:
    return lambda_.Code.from_asset(str(built.folder), asset_hash=built.key)


def log_group(scope: Construct, id_: str, *, days: int) -> logs.LogGroup:
    """Make a log group that goes with its stack."""
    group = logs.LogGroup(scope, id_, removal_policy=RemovalPolicy.DESTROY)
    # The construct takes days only as words; the resource takes the number.
    cast("logs.CfnLogGroup", group.node.default_child).retention_in_days = days
    return group


def trigger(
    id_: str,
    function: lambda_.Function,
    queue: sqs.IQueue,
    *,
    batch: int = SMALL_BATCH,
    window_s: int | None = None,
    fifo: bool = False,
    concurrency: int | None = LEAST_CONCURRENCY,
    enabled: bool = True,
) -> lambda_.EventSourceMapping:
    """Have a function read a queue, and say which messages of a batch come again. FIFO queues have small batches.

    Without a maximum of concurrency AWS may poll a standard queue at rest with two pollers in place of five: for queues
    to which our own functions alone send, and seldom.
    """
    return lambda_.EventSourceMapping(
        scope_of(function),
        f"{id_}Trigger",
        target=function,
        event_source_arn=queue.queue_arn,
        batch_size=min(batch, SMALL_BATCH) if fifo else batch,
        max_batching_window=None if window_s is None or fifo else Duration.seconds(window_s),
        report_batch_item_failures=True,
        max_concurrency=concurrency,
        enabled=None if enabled else False,
    )


def trigger_by_stream(
    id_: str,
    function: lambda_.Function,
    stream_arn: str,
    *,
    filters: Sequence[Mapping[str, object]],
    window_s: int,
    failures: sqs.IQueue,
) -> lambda_.EventSourceMapping:
    """Have a function read a table's stream from its beginning, what the filters let through, each shard in order.

    What fails is tried again within limits, then the queue of failures is told which records these were.
    """
    return lambda_.EventSourceMapping(
        scope_of(function),
        f"{id_}Trigger",
        target=function,
        event_source_arn=stream_arn,
        # What was changed before the trigger is there counts too, as long as the stream has it.
        starting_position=lambda_.StartingPosition.TRIM_HORIZON,
        batch_size=STREAM_BATCH,
        max_batching_window=Duration.seconds(window_s),
        parallelization_factor=1,
        report_batch_item_failures=True,
        bisect_batch_on_error=True,
        retry_attempts=STREAM_ATTEMPTS,
        max_record_age=STREAM_AGE,
        on_failure=event_sources.SqsDlq(failures),
        filters=[lambda_.FilterCriteria.filter(dict(each)) for each in filters],
    )


def every_minute(function: lambda_.Function, asked: Mapping[str, object] | None = None) -> None:
    """Have a function called by the clock, with a request if it takes one."""
    event = None if asked is None else events.RuleTargetInput.from_object(asked)
    target = targets.LambdaFunction(function, event=event)
    schedule = events.Schedule.rate(Duration.minutes(1))
    events.Rule(scope_of(function), "EveryMinute", schedule=schedule, targets=[target])


def scope_of(function: lambda_.Function) -> Construct:
    """Give what a function was made in, where what belongs to it is."""
    return cast("Construct", function.node.scope)


def queue_arn(stack: Stack, name: str) -> str:
    """Name by its ARN a queue of the stack's account and region."""
    return stack.format_arn(service="sqs", resource=name, arn_format=ArnFormat.NO_RESOURCE_NAME)
