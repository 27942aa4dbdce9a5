"""Creates tables, buckets and queues for all constructs: encrypted, accessible only over TLS, and kept if requested."""

from collections.abc import Mapping
from typing import Any, cast

import jsii
from aws_cdk import Aspects, CfnResource, Duration, IAspect, RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from constructs import Construct, IConstruct

from sluice.constructs.roles import KEY, suppress_finding

LONGEST = Duration.days(14)  # SQS retains messages for at most 14 days.
TICKS_RETENTION = Duration.hours(1)
FEW_RECEIVES = 3
MANY_RECEIVES = 20  # The functions give up after fewer receives, and then record a reason.
LOGS_PREFIX = "logs/"  # EMR Serverless writes its logs under this prefix.
ITEMS: Mapping[str, Any] = {
    "partition_key": dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
    "sort_key": dynamodb.Attribute(name="sk", type=dynamodb.AttributeType.STRING),
    "billing_mode": dynamodb.BillingMode.PAY_PER_REQUEST,
    "time_to_live_attribute": "expires_at",
}


def create_table(
    scope: Construct, id_: str, *, keep: bool, stream: dynamodb.StreamViewType | None = None
) -> dynamodb.Table:
    """Create a table whose key attributes are `pk` and `sk`, with point-in-time recovery."""
    return dynamodb.Table(
        scope,
        id_,
        **ITEMS,
        point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
            point_in_time_recovery_enabled=True
        ),
        stream=stream,
        deletion_protection=keep,
        removal_policy=choose_removal_policy(keep=keep),
    )


def create_temporary_table(scope: Construct, id_: str) -> dynamodb.Table:
    """Create a table without recovery, for personal data that must be deleted after minutes."""
    made = dynamodb.Table(scope, id_, **ITEMS, removal_policy=RemovalPolicy.DESTROY)
    suppress_finding(made, "AwsSolutions-DDB3", "A recovery would restore addresses and keys, which must be deleted.")
    return made


def choose_removal_policy(*, keep: bool) -> RemovalPolicy:
    """Return a removal policy. With `keep`, a resource stays in the account when it leaves its stack."""
    return RemovalPolicy.RETAIN if keep else RemovalPolicy.DESTROY


def create_queue(
    scope: Construct,
    id_: str,
    *,
    dead_letters: sqs.IQueue | None = None,
    max_receives: int = MANY_RECEIVES,
    visibility: Duration | None = None,
    retention: Duration = LONGEST,
    fifo: bool = False,
    per_group: bool = False,
    name: str | None = None,
    keep: bool = False,
) -> sqs.Queue:
    """Create a queue. With `keep`, the queue stays in the account when it leaves its stack.

    With `per_group`, each message group of a FIFO queue has its own throughput limit and its own deduplication.
    """
    return sqs.Queue(
        scope,
        id_,
        queue_name=name,
        fifo=fifo or None,  # CloudFormation refuses `false` for a standard queue.
        deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP if per_group else None,
        fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID if per_group else None,
        retention_period=retention,
        visibility_timeout=visibility,
        dead_letter_queue=(
            None if dead_letters is None else sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=max_receives)
        ),
        encryption=sqs.QueueEncryption.SQS_MANAGED,
        enforce_ssl=True,
        removal_policy=choose_removal_policy(keep=keep),
    )


def visibility_timeout(timeout: Duration, window_s: int = 0) -> Duration:
    """Return the visibility timeout that Lambda recommends: six times its function's timeout, plus the window.

    https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
    """
    return Duration.seconds(6 * int(timeout.to_seconds()) + window_s)


def create_bucket(scope: Construct, id_: str, *, keep: bool, log_days: int) -> s3.Bucket:
    """Create the bucket of the pipeline's jobs. Logs in the bucket expire after `log_days` days."""
    made = s3.Bucket(
        scope,
        id_,
        encryption=s3.BucketEncryption.S3_MANAGED,
        enforce_ssl=True,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        removal_policy=choose_removal_policy(keep=keep),
        lifecycle_rules=[
            # Staged segments have no expiration: the Spark source deletes them, because only it knows their readers.
            s3.LifecycleRule(id="unfinished-uploads", abort_incomplete_multipart_upload_after=Duration.days(1)),
            s3.LifecycleRule(id="logs", prefix=LOGS_PREFIX, expiration=Duration.days(log_days)),
        ],
    )
    suppress_finding(made, "AwsSolutions-S1", "Only the job role and EMR Serverless use it; CloudTrail records calls.")
    return made


def encrypt_resources(scope: Construct, key_arn: str | None) -> None:
    """Encrypt all future contents of `scope`: queues, tables, buckets, topics, log groups and functions' variables."""
    if key_arn is not None:
        scope.node.set_context(KEY, key_arn)
        Aspects.of(scope).add(_Encryption(key_arn))


@jsii.implements(IAspect)
class _Encryption:
    def __init__(self, key_arn: str) -> None:
        in_bucket = s3.CfnBucket.ServerSideEncryptionByDefaultProperty(
            sse_algorithm="aws:kms", kms_master_key_id=key_arn
        )
        rule = s3.CfnBucket.ServerSideEncryptionRuleProperty(
            bucket_key_enabled=True, server_side_encryption_by_default=in_bucket
        )
        bucket = s3.CfnBucket.BucketEncryptionProperty(server_side_encryption_configuration=[rule])
        table = dynamodb.CfnTable.SSESpecificationProperty(sse_enabled=True, sse_type="KMS", kms_master_key_id=key_arn)
        self._properties: Mapping[str, Mapping[str, Any]] = {
            "AWS::SQS::Queue": {"kms_master_key_id": key_arn, "sqs_managed_sse_enabled": False},
            "AWS::SNS::Topic": {"kms_master_key_id": key_arn},
            "AWS::Logs::LogGroup": {"kms_key_id": key_arn},
            "AWS::Lambda::Function": {"kms_key_arn": key_arn},
            "AWS::DynamoDB::Table": {"sse_specification": table},
            "AWS::S3::Bucket": {"bucket_encryption": bucket},
        }

    def visit(self, node: IConstruct) -> None:
        """Set properties of one CloudFormation resource. Rule packs of cdk-nag don't see CDK's property overrides."""
        if CfnResource.is_cfn_resource(node):
            for name, value in self._properties.get(cast("CfnResource", node).cfn_resource_type, {}).items():
                setattr(node, name, value)
