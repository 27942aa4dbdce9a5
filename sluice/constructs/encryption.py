"""Encrypts a site's resources with the KMS key of parameter `kms_key_arn`, and lets the site's roles use that key."""

from collections.abc import Mapping
from typing import Any, cast

import jsii
from aws_cdk import Aspects, CfnResource, IAspect
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
        in_bucket = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key_arn}
        bucket_rule = {"BucketKeyEnabled": True, "ServerSideEncryptionByDefault": in_bucket}
        self._overrides: Mapping[str, Mapping[str, Any]] = {
            "AWS::SQS::Queue": {"KmsMasterKeyId": key_arn, "SqsManagedSseEnabled": False},
            "AWS::SNS::Topic": {"KmsMasterKeyId": key_arn},
            "AWS::Logs::LogGroup": {"KmsKeyId": key_arn},
            "AWS::Lambda::Function": {"KmsKeyArn": key_arn},
            "AWS::DynamoDB::Table": {
                "SSESpecification": {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key_arn}
            },
            "AWS::S3::Bucket": {"BucketEncryption": {"ServerSideEncryptionConfiguration": [bucket_rule]}},
        }

    def visit(self, node: IConstruct) -> None:
        """Override the properties of one resource."""
        if CfnResource.is_cfn_resource(node):
            resource = cast("CfnResource", node)
            for name, value in self._overrides.get(resource.cfn_resource_type, {}).items():
                resource.add_property_override(name, value)
