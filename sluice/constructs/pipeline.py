"""Creates the pipeline: an EMR Serverless application, the role of its jobs, and the jobs function.

CloudFormation has no type for a job run, so a deployment only sets the desired runs, in the jobs function's
environment. Every minute the function compares the desired with the actual runs, and starts or cancels runs. A
deployment therefore neither waits for a stream to end nor fails because of one, and a lost start is repeated the next
minute. With `architecture=local` there is neither application nor function, because local Spark runs the jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Unpack, cast

from aws_cdk import ArnFormat, Aws, Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_emrserverless as emr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_sqs as sqs
from constructs import Construct
from msgspec import UNSET, to_builtins

from sluice.building.project import PROJECT
from sluice.bundles.assets import Assets
from sluice.bundles.environment import SparkAssets, get_image_target
from sluice.constructs import roles, storage
from sluice.constructs.alarms import SPARK_NAMESPACE, AlarmRule, Capability, build_metric
from sluice.constructs.arguments import SiteProps, check_arguments
from sluice.constructs.exchange import Exchange
from sluice.constructs.exchange_state import ExchangeState
from sluice.constructs.functions import Functions, create_log_group, create_reader_alias, invoke_every_minute
from sluice.constructs.network import Network, allow_endpoints, create_network
from sluice.constructs.references import import_into
from sluice.constructs.roles import Statement, allow, pass_role
from sluice.constructs.site_construct import NOTHING, SiteConstruct, StackOutput
from sluice.constructs.splitting import SplitQueue, SplitQueues
from sluice.constructs.storage import LOGS_PREFIX
from sluice.errors import BadConfiguration
from sluice.parameters import Architecture, Parameters
from sluice.pipeline.endpoints import EndpointSettings
from sluice.pipeline.jobs import Landing, Program, SqsEndpoint, StorageLocations, Workers
from sluice.pipeline.operations import ReconcileJobs
from sluice.pipeline.settings import JobLimits, JobsSettings
from sluice.stages import add_stage_prefix

JOBS_TIMEOUT = Duration.seconds(50)  # The timeout is shorter than the schedule's interval, a minute.
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
OF_FOLDERS = "Jobs name their objects at run time; the wildcard follows the folder, in the pipeline's own bucket."
OF_RUNS = "Job runs get their ids when they start; of this application."
OF_LOG_GROUPS = "DescribeLogGroups lists by prefix, and takes no log group."


class ProgramAssets(NamedTuple):
    """The uploaded files of a job's program."""

    entry_point: s3_assets.Asset
    environment: s3_assets.Asset
    driver: s3_assets.Asset
    code: s3_assets.Asset


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """Resources that outlive the pipeline's jobs: bucket, table and queue. The land job reads the queue `main`."""

    main: sqs.IQueue
    bucket: s3.IBucket
    table: dynamodb.ITable

    @classmethod
    def create(cls, scope: Construct, parameters: Parameters, *, main: sqs.IQueue) -> "PipelineState":
        """Create the resources in `scope`."""
        keep = parameters.rendezvous.keep_state
        bucket = storage.create_bucket(scope, "PipelineBucket", keep=keep, log_days=parameters.log_retention_days)
        return cls(main=main, bucket=bucket, table=storage.create_table(scope, "PipelineTable", keep=keep))


def find_landed_queue(queues: Sequence[SplitQueues], parameters: Parameters) -> sqs.IQueue | None:
    """Find the main queue of the split queue that the pipeline lands. Returns None if no split queue has that id."""
    queue_id = parameters.pipeline.queue_id
    return next((split.main for split in queues if split.parameters.queue_id == queue_id), None)


@check_arguments
class LandingPipeline(SiteConstruct):
    """EMR Serverless jobs that land a queue's messages in tables, and the function that manages their runs.

    Only one pipeline is allowed per stage, account and region. The land job reads `queue`: a split queue's main queue,
    or any queue of yours. `subnets` are subnets of your `vpc`, by default its private ones. From there, jobs must reach
    SQS, S3 and CloudWatch Logs by a NAT gateway or endpoints of yours. Without `vpc` a VPC is created, whose endpoints
    cost money while jobs run. `parameters` are those of section `pipeline`. Raises `BadConfiguration`, with the
    construct's path.
    """

    capability = Capability.PIPELINE
    stack_name: ClassVar[str] = "SluicePipeline"

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        exchange: Exchange | ExchangeState,
        queue: SplitQueue | sqs.IQueue | None = None,
        state: PipelineState | None = None,
        vpc: ec2.IVpc | None = None,
        subnets: Sequence[ec2.ISubnet] = (),
        security_groups: Sequence[ec2.ISecurityGroup] = (),
        kms_key_arns: Sequence[str] = (),
        parameters: Mapping[str, object] | Parameters = NOTHING,
        assets: Assets | None = None,
        spark_assets: SparkAssets | None = None,
        **props: Unpack[SiteProps],
    ) -> None:
        """Create all resources of the pipeline, and also the state unless another stack's `state` is given.

        Replayed messages go to `exchange`. `kms_key_arns` are the KMS keys of queues that the jobs read.
        """
        super().__init__(scope, id_, "pipeline", parameters, props)
        self.options = self.parameters.pipeline
        main = queue.main_queue if isinstance(queue, SplitQueue) else queue
        if state is None and main is None:
            raise BadConfiguration(f"{self.node.path}: there is no queue for the land job: set queue")
        if state is None and main is not None:
            state = PipelineState.create(self, self.parameters, main=main)
        self.state: PipelineState = import_into(self, cast("PipelineState", state))
        ingress = (exchange.state if isinstance(exchange, Exchange) else exchange).ingresses[0].queue
        self.ingress = import_into(self, ingress)
        self.queue = self.state.main
        key = self.queue.encryption_master_key
        self.kms_key_arns = [*kms_key_arns, *([] if key is None else [key.key_arn])]
        self.network: Network | None = None
        if vpc is not None:  # A VPC's default security group allows no ingress.
            groups = security_groups or [ec2.SecurityGroup(self, "WorkersGroup", vpc=vpc, description="Sluice: jobs")]
            self.network = Network(
                vpc_id=vpc.vpc_id,
                subnet_ids=[subnet.subnet_id for subnet in subnets or vpc.private_subnets],
                security_group_ids=[group.security_group_id for group in groups],
                route_table_ids=[],
            )
        self.application: emr.CfnApplication | None = None
        outputs = [
            StackOutput(name="QueueUrl", value=self.queue.queue_url),
            StackOutput(name="IngressUrl", value=self.ingress.queue_url),
            StackOutput(name="BucketName", value=self.bucket.bucket_name),
            StackOutput(name="TableFormat", value=self.options.table_format.value),
        ]
        if self.parameters.architecture is Architecture.LOCAL:
            _create_job_role(self, _build_job_statements(self))
        else:
            outputs = [
                *_create_emr_resources(self, assets or Assets(PROJECT), spark_assets or SparkAssets(PROJECT)),
                *outputs,
            ]
        self.home.publish(self, outputs)

    @property
    def bucket(self) -> s3.IBucket:
        """The bucket of the tables and of the jobs' other files."""
        return self.state.bucket

    def grant_read(self, grantee: iam.IGrantable) -> iam.Grant:
        """Allow a principal to read the landed tables."""
        return self.bucket.grant_read(grantee, "tables/*")

    def metric(self, name: str, *, service: str = "jobs", statistic: str = "Maximum") -> cloudwatch.Metric:
        """Return a metric of the function that manages runs, such as `StreamsDown`: see docs/operations.md."""
        return build_metric(name, service, stage=self.parameters.stage, statistic=statistic)


def _create_emr_resources(construct: LandingPipeline, assets: Assets, spark_assets: SparkAssets) -> list[StackOutput]:
    job_logs = create_log_group(construct, "JobLogs", days=construct.parameters.log_retention_days)
    target = get_image_target(construct.parameters.architecture, construct.options.python.value)
    archives = (spark_assets.environment(target), spark_assets.driver(target), spark_assets.code())
    program = ProgramAssets(
        *(
            s3_assets.Asset(construct, id_, path=str(part.folder), asset_hash=part.key)
            for id_, part in zip(
                ("EntryPoint", "Environment", "Driver", "Code"), (spark_assets.entry_point, *archives), strict=True
            )
        )
    )
    of_region = construct.stack.format_arn(service="logs", resource="*", arn_format=ArnFormat.NO_RESOURCE_NAME)
    statements = [
        *_build_job_statements(construct),
        # The role may read only the program's objects, not the whole bucket of deployment assets.
        allow("s3", ["GetObject"], *(asset.bucket.arn_for_objects(asset.s3_object_key) for asset in program)),
        # Permissions for writing logs: https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/logging.html
        allow("s3", ["PutObject"], f"{construct.bucket.bucket_arn}/{LOGS_PREFIX}*", wildcards=OF_FOLDERS),
        allow("logs", ["CreateLogStream", "PutLogEvents", "DescribeLogStreams"], job_logs.log_group_arn),
        allow("logs", ["DescribeLogGroups"], of_region, wildcards=OF_LOG_GROUPS),
    ]
    network = construct.network or create_network(construct, construct.options, statements)
    application = construct.application = _create_application(construct, job_logs, network)
    role = _create_job_role(construct, statements, ArnEquals={"aws:SourceArn": application.attr_arn})
    endpoints = network.endpoint_settings(construct.options, role.role_arn)
    application_id = application.attr_application_id
    runs = f"{application.attr_arn}/jobruns/*"
    function = Functions.create(construct, assets, extras=["functions"]).create_function(
        "jobs",
        timeout=JOBS_TIMEOUT,
        memory_mb=construct.options.jobs_memory_mb,
        settings=_build_settings(construct, application_id, role, program, endpoints),
        allowed=[
            allow("emr-serverless", ["StartJobRun", "ListJobRuns"], application.attr_arn),
            # The function tags runs when it starts them.
            allow("emr-serverless", ["CancelJobRun", "TagResource"], runs, wildcards=OF_RUNS),
            pass_role("emr-serverless", role.role_arn),
            allow("dynamodb", ["GetItem", "PutItem"], construct.state.table.table_arn),
            *(allow_endpoints(construct.stack, endpoints, application_id) if endpoints else ()),
        ],
    )
    invoke_every_minute(function, to_builtins(ReconcileJobs()))
    create_reader_alias(function)
    if network.s3_endpoint is not None:
        function.node.add_dependency(network.s3_endpoint)  # Jobs that the function starts need this endpoint.
    for name, periods, text in (
        ("StreamsDown", 3, "The land job should run but does not: `sluice pipeline status` shows the reason"),
        ("JobsFailed", 1, "A job run failed: `sluice pipeline logs` shows the error"),
    ):
        rule = AlarmRule(
            name=name,
            text=text,
            metric=construct.metric(name),
            threshold=1,
            periods=periods,
            capability=construct.capability,
        )
        construct.watch(rule)
    return [
        StackOutput(name="ApplicationId", value=application_id),
        StackOutput(name="JobsFunctionName", value=function.function_name),
        StackOutput(name="JobLogGroupName", value=job_logs.log_group_name),
    ]


def _create_application(construct: LandingPipeline, job_logs: logs.LogGroup, network: Network) -> emr.CfnApplication:
    options, application = construct.options, emr.CfnApplication
    return emr.CfnApplication(
        construct,
        "Application",
        release_label=options.release_label,
        type="SPARK",
        architecture=ARCHITECTURES[construct.parameters.architecture],
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
                log_uri=f"s3://{construct.state.bucket.bucket_name}/{LOGS_PREFIX}"
            ),
            cloud_watch_logging_configuration=application.CloudWatchLoggingConfigurationProperty(
                enabled=True, log_group_name=job_logs.log_group_name
            ),
        ),
        network_configuration=application.NetworkConfigurationProperty(
            subnet_ids=list(network.subnet_ids), security_group_ids=list(network.security_group_ids)
        ),
    )


def _create_job_role(
    construct: LandingPipeline, statements: Sequence[Statement], **conditions: Mapping[str, str]
) -> iam.Role:
    """Create the role that only jobs of this account assume."""
    of_account = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}, **conditions}
    return roles.create_role(
        construct,
        "JobRole",
        assumed_by=iam.PrincipalWithConditions(iam.ServicePrincipal("emr-serverless.amazonaws.com"), of_account),
        allowed=statements,
    )


def _build_job_statements(construct: LandingPipeline) -> list[Statement]:
    bucket, listed = construct.bucket.bucket_arn, [f"{folder}{of}" for folder in JOB_FOLDERS for of in ("", "/*")]
    statements = [
        allow("sqs", QUEUE_ACTIONS, construct.queue.queue_arn),
        allow("sqs", ["SendMessage"], construct.ingress.queue_arn),  # The job `replay` publishes messages.
        allow("s3", OBJECT_ACTIONS, *(f"{bucket}/{folder}/*" for folder in JOB_FOLDERS), wildcards=OF_FOLDERS),
        allow("s3", ["GetBucketLocation"], bucket),
        # Without permission to list the bucket, S3 reports a missing object as denied access.
        # Requests for objects have no prefix, so the condition must allow requests without one:
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
        allow("s3", ["ListBucket"], bucket, conditions={"StringLikeIfExists": {"s3:prefix": listed}}),
    ]
    if construct.kms_key_arns:
        statements.append(allow("kms", ["Decrypt", "GenerateDataKey"], *construct.kms_key_arns))
    if construct.options.assume_role_arns:
        statements.append(allow("sts", ["AssumeRole"], *construct.options.assume_role_arns))
    return statements


def _build_settings(
    construct: LandingPipeline,
    application_id: str,
    role: iam.Role,
    program: ProgramAssets,
    endpoints: EndpointSettings | None,
) -> JobsSettings:
    options, stage = construct.options, construct.parameters.stage
    places = StorageLocations(root=f"s3://{construct.state.bucket.bucket_name}", table_format=options.table_format)
    return JobsSettings(
        application_id=application_id,
        role_arn=role.role_arn,
        table=construct.state.table.table_name,
        ingress_url=construct.ingress.queue_url,
        program=Program(
            entry_point=program.entry_point.s3_object_url,
            environment=program.environment.s3_object_url,
            driver=program.driver.s3_object_url,
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
            queue_url=construct.queue.queue_url,
            places=places,
            sqs_endpoint=SqsEndpoint(region=Aws.REGION),
            trigger_s=options.trigger_s,
            envelope=options.envelope,
            columns=options.columns,
            metrics=UNSET if stage is None else add_stage_prefix(SPARK_NAMESPACE, stage),
        ),
        limits=JobLimits(**options.model_dump(include=set(JobLimits.__struct_fields__))),
        endpoints=endpoints,
    )
