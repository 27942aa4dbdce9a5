"""Creates functions: code and layer, log group, and a role limited to the function's statements.

Every role's statements are listed where its function is created: no construct grants more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from sluice.aws_rules import MIN_CONCURRENCY, MIN_POLLERS
from sluice.bundles.assets import Assets, BuiltFolder, BundleTarget
from sluice.constructs import roles, stored
from sluice.constructs.alarms import METRICS_NAMESPACE
from sluice.constructs.roles import Statement, allow, suppress_finding
from sluice.constructs.site_construct import SiteConstruct
from sluice.operations import READER
from sluice.parameters import Architecture
from sluice.parameters.event_sources import Reading
from sluice.settings import Settings
from sluice.stages import add_stage_prefix

TRACE_ACTIONS = ("PutTraceSegments", "PutTelemetryRecords")

RUNTIME = lambda_.Runtime.PYTHON_3_13
ARCHITECTURES = {Architecture.ARM64: lambda_.Architecture.ARM_64, Architecture.X86_64: lambda_.Architecture.X86_64}

STREAM_BATCH = 1_000  # The unit is records per batch; Lambda allows 10,000 records and 6 MB.
STREAM_ATTEMPTS = 100  # With Lambda's backoff, this many retries of a batch take an hour or more.
STREAM_AGE = Duration.hours(12)  # A stream keeps records for 24 hours.
LEAST_READING = Reading(max_concurrency=MIN_CONCURRENCY)
AT_RUN_TIME = "These queues are created at run time; the wildcard follows the prefix of all their names."
# A function needs these actions to consume a queue, and to make failed messages visible again early.
CONSUME_ACTIONS = ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes", "ChangeMessageVisibility")
STREAM_ACTIONS = ("DescribeStream", "GetRecords", "GetShardIterator")  # These actions read a table's stream.


NO_FILES: Mapping[str, str] = {}
# Lambda's logging options: https://docs.aws.amazon.com/lambda/latest/dg/monitoring-cloudwatchlogs-advanced.html
QUIET_LOGGING: Mapping[str, Any] = {
    "logging_format": lambda_.LoggingFormat.JSON,
    "system_log_level_v2": lambda_.SystemLogLevel.WARN,
    "application_log_level_v2": lambda_.ApplicationLogLevel.TRACE,  # Sluice's log level decides what is logged.
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """Creates one capability's functions, which share a layer."""

    scope: SiteConstruct
    assets: Assets
    target: BundleTarget
    layer: lambda_.LayerVersion

    @classmethod
    def create(cls, scope: SiteConstruct, assets: Assets, *, extras: Sequence[str]) -> "Functions":
        """Create the factory of functions. The layer has the packages of these extras of pyproject.toml."""
        target = BundleTarget.of(scope.parameters.architecture)
        layer = lambda_.LayerVersion(
            scope,
            "Packages",
            code=load_code(assets.layer(assets.bundle(*extras), target)),
            compatible_runtimes=[RUNTIME],
            compatible_architectures=[ARCHITECTURES[target.machine]],
        )
        return cls(scope=scope, assets=assets, target=target, layer=layer)

    def create_function(
        self,
        name: str,
        *,
        settings: Settings,
        timeout: Duration,
        memory_mb: int,
        allowed: Sequence[Statement],
        failures: sqs.IQueue | None = None,
        may_recur: bool = False,
        is_called_often: bool = False,
        reserved_concurrency: int | None = None,
        files: Mapping[str, str] = NO_FILES,
    ) -> lambda_.Function:
        """Create a function. Asynchronous events go to the queue `failures` after Lambda has given up on them.

        If `is_called_often` is set, Lambda's own log lines are off, because they would cost more than the calls. Unless
        the function `may_recur`, Lambda treats 16 invocations in one trace as a runaway loop, and stops the loop:
        https://docs.aws.amazon.com/lambda/latest/dg/invocation-recursion.html
        `reserved_concurrency` is both reserved and the maximum; None means unreserved. `files` are added to the code:
        the keys are paths in the archive, the values paths in the project.
        """
        id_, home, parameters = name.capitalize(), self.scope.home, self.scope.parameters
        tracing = parameters.operations.tracing
        kept = stored.store_text(self.scope, home.name, name, settings.encode_stored())
        logs_ = create_log_group(self.scope, f"{id_}Logs", days=parameters.log_retention_days)
        # AWS's managed policy would allow writing to every log group of the account.
        write_logs = allow("logs", ["CreateLogStream", "PutLogEvents"], logs_.log_group_arn)
        no_resource = "X-Ray takes segments from a role, for no resource."
        traces = [allow("xray", TRACE_ACTIONS, "*", wildcards=no_resource)] if tracing else []
        own = stored.format_names_pattern(home.stack, home.name, name)
        read_settings = [allow("ssm", ["GetParameters"], own, wildcards=stored.OWN)] if kept else []
        role = roles.create_role(
            self.scope,
            f"{id_}Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            allowed=[*allowed, *read_settings, write_logs, *traces],
        )
        function = lambda_.Function(
            self.scope,
            id_,
            function_name=home.physical_name(id_),
            runtime=RUNTIME,
            architecture=ARCHITECTURES[self.target.machine],
            handler=f"functions.{name}.handler.handler",
            code=load_code(self.assets.code(extra_files=files)),
            layers=[self.layer],
            role=role.without_policy_updates(),  # Otherwise CDK's constructs add wider grants.
            log_group=logs_,
            timeout=timeout,
            memory_size=memory_mb,
            environment={
                "POWERTOOLS_SERVICE_NAME": name,
                "POWERTOOLS_METRICS_NAMESPACE": add_stage_prefix(METRICS_NAMESPACE, parameters.stage),
                "POWERTOOLS_LOG_LEVEL": parameters.log_level.value,
                **settings.environment(stored_under=kept),
            },
            dead_letter_queue=failures,
            recursive_loop=lambda_.RecursiveLoop.ALLOW if may_recur else None,
            reserved_concurrent_executions=reserved_concurrency,
            **(QUIET_LOGGING if is_called_often else {}),
            tracing=lambda_.Tracing.ACTIVE if tracing else None,
        )
        suppress_finding(
            function, "AwsSolutions-L1", "Bundles are built for one Python; a new one comes with its own release."
        )
        return function


def load_code(folder: BuiltFolder) -> lambda_.Code:
    """Return a folder with built code for CDK, as the code of a function or a layer."""
    return lambda_.Code.from_asset(str(folder.folder), asset_hash=folder.key)


def create_log_group(scope: Construct, id_: str, *, days: int) -> logs.LogGroup:
    """Create a log group that is deleted with its stack."""
    group = logs.LogGroup(scope, id_, removal_policy=RemovalPolicy.DESTROY)
    # The log group construct accepts only certain numbers of days; the CloudFormation resource accepts any number.
    cast("logs.CfnLogGroup", group.node.default_child).retention_in_days = days
    return group


def trigger(
    id_: str, function: lambda_.Function, queue: sqs.IQueue, *, reading: Reading = LEAST_READING, enabled: bool = True
) -> lambda_.EventSourceMapping:
    """Trigger a function by a queue, with partial batch responses.

    Without a maximum concurrency, AWS may poll an idle standard queue with two pollers instead of five, but nothing
    limits the function's concurrency. So None suits only queues that get few messages, from our own functions.
    """
    pollers = reading.max_pollers
    return lambda_.EventSourceMapping(
        find_parent_scope(function),
        f"{id_}Trigger",
        target=function,
        event_source_arn=queue.queue_arn,
        batch_size=reading.batch_size,
        # A window of 0 must be in the template: if it is omitted, an update keeps the previous window.
        max_batching_window=None if reading.window_s is None else Duration.seconds(reading.window_s),
        report_batch_item_failures=True,
        max_concurrency=reading.max_concurrency,
        provisioned_poller_config=None
        if pollers is None
        else lambda_.ProvisionedPollerConfig(minimum_pollers=MIN_POLLERS, maximum_pollers=pollers),
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
    """Trigger a function by a table's stream: matching records, in order by shard, from the stream's beginning.

    Failed records are retried within limits. After that, the queue `failures` gets their position in the stream.
    """
    return lambda_.EventSourceMapping(
        find_parent_scope(function),
        f"{id_}Trigger",
        target=function,
        event_source_arn=stream_arn,
        # The function also reads changes from before the trigger exists, as long as the stream keeps them.
        starting_position=lambda_.StartingPosition.TRIM_HORIZON,
        batch_size=STREAM_BATCH,
        max_batching_window=Duration.seconds(window_s),
        parallelization_factor=1,
        report_batch_item_failures=True,
        bisect_batch_on_error=True,
        retry_attempts=STREAM_ATTEMPTS,
        max_record_age=STREAM_AGE,
        on_failure=event_sources.SqsDlq(failures),
        filters=[lambda_.FilterCriteria.filter(dict(pattern)) for pattern in filters],
    )


def create_reader_alias(function: lambda_.Function) -> None:
    """Create the alias that readers may invoke. Like all other callers, it uses the unpublished version.

    https://docs.aws.amazon.com/lambda/latest/api/API_CreateAlias.html
    """
    id_ = f"{function.node.id}Reader"
    lambda_.Alias(find_parent_scope(function), id_, alias_name=READER, version=function.latest_version)


def invoke_every_minute(function: lambda_.Function, request: Mapping[str, object] | None = None) -> None:
    """Invoke a function every minute. The event is `request`, if given."""
    event = None if request is None else events.RuleTargetInput.from_object(request)
    target = targets.LambdaFunction(function, event=event)
    schedule = events.Schedule.rate(Duration.minutes(1))
    events.Rule(find_parent_scope(function), "EveryMinute", schedule=schedule, targets=[target])


def find_parent_scope(function: lambda_.Function) -> Construct:
    """Return the construct that contains a function, for resources that belong to the function."""
    return cast("Construct", function.node.scope)


def format_queue_arn(stack: Stack, name: str) -> str:
    """Return the ARN of a queue in the stack's account and region."""
    return stack.format_arn(service="sqs", resource=name, arn_format=ArnFormat.NO_RESOURCE_NAME)
