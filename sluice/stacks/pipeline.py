"""The pipeline: an EMR Serverless application, the role that its jobs run as, and the function that looks after runs.

CloudFormation has no type for a job run. So a deployment only says, in the function's environment, what should run; the
function compares that with what does run, every minute, and starts and cancels accordingly. A deployment therefore
neither waits for a stream to end nor fails because of one, and a start that got lost comes the next minute.

On `architecture=local` there is neither application nor function: local Spark runs the jobs. The role is there.
"""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aws_cdk import ArnFormat, Aws, CfnOutput, Duration, Fn
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct
from msgspec import UNSET, to_builtins

from sluice.pipeline.jobs import Landing, Places, Program, Reach, Workers
from sluice.pipeline.operations import ReconcileJobs
from sluice.pipeline.settings import JobLimits, JobsSettings
from sluice.project import Project
from sluice.stacks import functions, roles
from sluice.stacks.alarms import SPARK_NAMESPACE, Capability, Rule, WatchedStack, alarm, ours
from sluice.stacks.bundles.assets import Assets, Built
from sluice.stacks.bundles.environment import SparkAssets, image_target
from sluice.stacks.functions import Functions, Plan, acknowledge, allow, every_minute
from sluice.stacks.network import Network, network_of
from sluice.stacks.parameters import Architecture, Parameters, PipelineParameters
from sluice.stacks.state import LOGS_PREFIX, PipelineState, StateStack
from sluice.stages import staged

JOBS_TIMEOUT = Duration.seconds(50)  # it ends before it is called again
ARCHITECTURES = {Architecture.ARM64: "ARM64", Architecture.X86_64: "X86_64"}
QUEUE_ACTIONS = (
    "ReceiveMessage",
    "DeleteMessage",
    "ChangeMessageVisibility",
    "GetQueueAttributes",
    "GetQueueUrl",
)
JOB_FOLDERS = ("staging", "checkpoint", "tables", "quarantine", "statistics")
OBJECT_ACTIONS = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload", "ListMultipartUploadParts")
OF_FOLDERS = "Jobs name their objects at run time; the wildcard stands after the folder, in the pipeline's own bucket."
OF_LOG_GROUPS = "DescribeLogGroups lists by prefix, and takes no log group."


class ProgramAssets(NamedTuple):
    """What a job's program is uploaded as."""

    entry_point: s3_assets.Asset
    environment: s3_assets.Asset
    code: s3_assets.Asset


class PipelineStack(WatchedStack):
    """Stack `SluicePipeline`."""

    capability = Capability.PIPELINE

    def __init__(
        self, scope: Construct, parameters: Parameters, *, state: StateStack, pipeline: PipelineState, project: Project
    ) -> None:
        super().__init__(
            scope, staged("SluicePipeline", parameters.stage), description="Sluice: jobs on EMR Serverless"
        )
        self.parameters = parameters
        self.options: PipelineParameters = parameters.pipeline
        self.state = pipeline
        # By an output of its own name, which roles' wildcards are acknowledged by.
        self.bucket_arn = Fn.get_stack_output(state.stack_name, pipeline.bucket_arn.logical_id, Aws.REGION)
        self.ingress = state.federation.ingresses[0].queue
        self.queue = pipeline.main
        self.kms_key_arns = parameters.splitting.kms_key_arns
        if parameters.architecture is Architecture.LOCAL:
            _job_role(self, _job_statements(self))
        else:
            _on_emr(self, project)
        CfnOutput(self, "QueueUrl", value=self.queue.queue_url)
        CfnOutput(self, "IngressUrl", value=self.ingress.queue_url)
        CfnOutput(self, "BucketName", value=self.state.bucket.bucket_name)
        CfnOutput(self, "TableFormat", value=self.options.table_format.value)


def _on_emr(stack: PipelineStack, project: Project) -> None:
    log_group = functions.log_group(stack, "JobLogs", days=stack.parameters.log_retention_days)
    program = _program(stack, SparkAssets(project))
    of_region = stack.format_arn(service="logs", resource="*", arn_format=ArnFormat.NO_RESOURCE_NAME)
    statements = [
        *_job_statements(stack),
        # These objects, not the whole of the deployments' bucket.
        allow("s3", ["GetObject"], *(asset.bucket.arn_for_objects(asset.s3_object_key) for asset in program)),
        # https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html
        allow("s3", ["PutObject"], f"{stack.bucket_arn}/{LOGS_PREFIX}*"),
        allow("logs", ["CreateLogStream", "PutLogEvents", "DescribeLogStreams"], log_group.log_group_arn),
        allow("logs", ["DescribeLogGroups"], of_region),
    ]
    network = network_of(stack, stack.options, statements)
    application = _application(stack, log_group, network)
    role = _job_role(stack, statements, ArnEquals={"aws:SourceArn": application.attr_arn})
    function = _jobs_function(stack, Assets(project), application, role, program)
    function.node.add_dependency(*network.endpoints)  # it starts what needs them
    _alarms(stack)
    CfnOutput(stack, "ApplicationId", value=application.attr_application_id)
    CfnOutput(stack, "JobsFunctionName", value=function.function_name)
    CfnOutput(stack, "JobLogGroupName", value=log_group.log_group_name)


def _application(stack: PipelineStack, log_group: logs.LogGroup, network: Network) -> emr.CfnApplication:
    options, application = stack.options, emr.CfnApplication
    return emr.CfnApplication(
        stack,
        "Application",
        release_label=options.release_label,
        type="SPARK",
        architecture=ARCHITECTURES[stack.parameters.architecture],
        auto_start_configuration=application.AutoStartConfigurationProperty(enabled=True),
        auto_stop_configuration=application.AutoStopConfigurationProperty(
            enabled=True, idle_timeout_minutes=options.idle_timeout_minutes
        ),
        maximum_capacity=application.MaximumAllowedResourcesProperty(
            cpu=f"{options.max_vcpu} vCPU", memory=f"{options.max_memory_gb} GB", disk=f"{options.max_disk_gb} GB"
        ),
        scheduler_configuration=application.SchedulerConfigurationProperty(
            max_concurrent_runs=options.max_concurrent_runs, queue_timeout_minutes=options.queue_timeout_minutes
        ),
        monitoring_configuration=application.MonitoringConfigurationProperty(
            s3_monitoring_configuration=application.S3MonitoringConfigurationProperty(
                log_uri=f"s3://{stack.state.bucket.bucket_name}/{LOGS_PREFIX}"
            ),
            cloud_watch_logging_configuration=application.CloudWatchLoggingConfigurationProperty(
                enabled=True, log_group_name=log_group.log_group_name
            ),
        ),
        network_configuration=application.NetworkConfigurationProperty(
            subnet_ids=list(network.subnet_ids), security_group_ids=list(network.group_ids)
        ),
    )


def _program(stack: PipelineStack, built: SparkAssets) -> ProgramAssets:
    def asset(id_: str, made: Built) -> s3_assets.Asset:
        return s3_assets.Asset(stack, id_, path=str(made.folder), asset_hash=made.key)

    target = image_target(stack.parameters.architecture, stack.options.python.value)
    return ProgramAssets(
        entry_point=asset("EntryPoint", built.entry_point),
        environment=asset("Environment", built.environment(target)),
        code=asset("Code", built.code()),
    )


def _job_role(
    stack: PipelineStack, statements: Sequence[iam.PolicyStatement], **conditions: Mapping[str, str]
) -> iam.Role:
    """Make the role that jobs of this account run as."""
    of_account = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}, **conditions}
    role = roles.role(
        stack,
        "JobRole",
        assumed_by=iam.PrincipalWithConditions(iam.ServicePrincipal("emr-serverless.amazonaws.com"), of_account),
        allowed=statements,
    )
    bucket = json.dumps(stack.resolve(stack.bucket_arn), separators=(",", ":"))  # as cdk-nag knows it
    for folder in (*JOB_FOLDERS, LOGS_PREFIX.rstrip("/")):
        acknowledge(role, f"AwsSolutions-IAM5[Resource::{bucket}/{folder}/*]", OF_FOLDERS)
    of_region = "arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:*"
    acknowledge(role, f"AwsSolutions-IAM5[Resource::{of_region}]", OF_LOG_GROUPS)
    return role


def _job_statements(stack: PipelineStack) -> list[iam.PolicyStatement]:
    bucket = stack.bucket_arn
    statements = [
        allow("sqs", QUEUE_ACTIONS, stack.queue.queue_arn),
        allow("sqs", ["SendMessage"], stack.ingress.queue_arn),  # replay
        allow("s3", OBJECT_ACTIONS, *(f"{bucket}/{folder}/*" for folder in JOB_FOLDERS)),
        allow("s3", ["GetBucketLocation"], bucket),
        # Who may list a bucket is told that an object isn't there, and others that they may not read it; such a request
        # names no prefix: https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
        iam.PolicyStatement(
            actions=["s3:ListBucket"],
            resources=[bucket],
            conditions={
                "StringLikeIfExists": {"s3:prefix": [f"{folder}{of}" for folder in JOB_FOLDERS for of in ("", "/*")]}
            },
        ),
    ]
    if stack.kms_key_arns:
        statements.append(allow("kms", ["Decrypt", "GenerateDataKey"], *stack.kms_key_arns))
    if stack.options.assume_role_arns:
        statements.append(allow("sts", ["AssumeRole"], *stack.options.assume_role_arns))
    return statements


def _jobs_function(
    stack: PipelineStack,
    assets: Assets,
    application: emr.CfnApplication,
    role: iam.Role,
    program: ProgramAssets,
) -> lambda_.Function:
    runs = f"{application.attr_arn}/jobruns/*"
    function = Functions.of(stack, stack.parameters, assets, extras=["functions"]).make(
        Plan(
            name="jobs",
            timeout=JOBS_TIMEOUT,
            memory_mb=stack.options.jobs_memory_mb,
            settings=_settings(stack, application, role, program),
            wildcards={"<Application.Arn>/jobruns/*": "Job runs get their ids when they start; of this application."},
            allowed=[
                allow("emr-serverless", ["StartJobRun", "ListJobRuns"], application.attr_arn),
                # Runs are tagged when they start.
                allow("emr-serverless", ["CancelJobRun", "TagResource"], runs),
                iam.PolicyStatement(
                    actions=["iam:PassRole"],
                    resources=[role.role_arn],
                    conditions={"StringEquals": {"iam:PassedToService": "emr-serverless.amazonaws.com"}},
                ),
                allow("dynamodb", ["GetItem", "PutItem"], stack.state.table.table_arn),
            ],
        )
    )
    every_minute(function, to_builtins(ReconcileJobs()))
    return function


def _settings(
    stack: PipelineStack, application: emr.CfnApplication, role: iam.Role, program: ProgramAssets
) -> JobsSettings:
    options, stage = stack.options, stack.parameters.stage
    places = Places(root=f"s3://{stack.state.bucket.bucket_name}", table_format=options.table_format)
    return JobsSettings(
        application_id=application.attr_application_id,
        role_arn=role.role_arn,
        table=stack.state.table.table_name,
        ingress_url=stack.ingress.queue_url,
        program=Program(
            entry_point=program.entry_point.s3_object_url,
            environment=program.environment.s3_object_url,
            code=program.code.s3_object_url,
            python=options.python.value,
            workers=Workers(
                cores=options.worker_vcpu,
                memory_gb=options.worker_memory_gb,
                disk_gb=options.worker_disk_gb,
                max_executors=options.max_executors,
            ),
            places=places,
        ),
        landing=Landing(
            queue_url=stack.queue.queue_url,
            places=places,
            reach=Reach(region=Aws.REGION),
            trigger_s=options.trigger_s,
            metrics=UNSET if stage is None else staged(SPARK_NAMESPACE, stage),
        ),
        limits=JobLimits(**options.model_dump(include=set(JobLimits.__struct_fields__))),
    )


def _alarms(stack: PipelineStack) -> None:
    for name, periods, text in (
        ("StreamsDown", 3, "The land job should run and doesn't: `sluice pipeline status` says why"),
        ("JobsFailed", 1, "A job run failed: `sluice pipeline logs`"),
    ):
        metric = ours(name, "jobs", stage=stack.parameters.stage, statistic="Maximum")
        alarm(
            stack,
            Rule(name=name, text=text, metric=metric, threshold=1, periods=periods, capability=Capability.PIPELINE),
        )
