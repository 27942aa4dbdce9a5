"""The types of AWS clients, for annotations. Only the type checker has boto3-stubs; at run time these types are Any."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sts import STSClient
else:
    CloudFormationClient = DynamoDBClient = IAMClient = LambdaClient = SQSClient = STSClient = Any

__all__ = ["CloudFormationClient", "DynamoDBClient", "IAMClient", "LambdaClient", "SQSClient", "STSClient"]
