"""Encrypts a site's resources with the KMS key of parameter `kms_key_arn`, and lets the site's roles use that key."""

from collections.abc import Mapping
from typing import Any, cast

import jsii
from aws_cdk import Aspects, CfnResource, IAspect
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3
from constructs import Construct, IConstruct

KEY = "sluice:kms-key-arn"  # the construct tree's context from which roles take the key


def use_key(scope: Construct, key_arn: str | None) -> None:
    """Encrypt what `scope` will contain: queues, tables, buckets, topics, log groups and functions' variables."""
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
        """Set the properties of one resource. Overrides would do, too, but rule packs of cdk-nag don't see them."""
        if CfnResource.is_cfn_resource(node):
            for name, value in self._properties.get(cast("CfnResource", node).cfn_resource_type, {}).items():
                setattr(node, name, value)
