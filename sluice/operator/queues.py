"""Queues by what an operator calls them, and queues that others own, as they are before they are adopted."""

import re
from typing import TYPE_CHECKING

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotUsable, listed_outputs
from sluice.errors import CallFailed
from sluice.splitting.adoption import SOURCE, AdoptedQueue

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sqs import SQSClient


FEDERATION_STACK = "SluiceFederation"
QUEUE_OUTPUT = re.compile(r"Queue\w+Url")


def queue_url(connection: Connection, name: str) -> str:
    """Give the URL of a queue by its name in cdk.json, or in SQS, or itself. Raises `QueueGone`, or `CallFailed`."""
    if name.startswith(("http://", "https://")):
        return name
    made = _made(connection, name)
    if made is not None:
        return made
    client: SQSClient = connection.client("sqs")
    with calls("GetQueueUrl", queue=name):
        return client.get_queue_url(QueueName=name)["QueueUrl"]


def _made(connection: Connection, name: str) -> str | None:
    """Read the queues' names in the descriptions of the stack's outputs; without a stack there are none."""
    try:
        outputs = listed_outputs(connection, FEDERATION_STACK)
    except (CallFailed, NotUsable):
        return None
    for output in outputs:
        if output.get("Description") == name and QUEUE_OUTPUT.fullmatch(output["OutputKey"]):
            return output["OutputValue"]
    return None


def arn_of(connection: Connection, url: str) -> str:
    """Give the ARN of a queue of the connection's region by its URL."""
    *_, account, name = url.split("/")
    partition = connection.session.get_partition_for_region(connection.region)
    return f"arn:{partition}:sqs:{connection.region}:{account}:{name}"


def look(connection: Connection, role: str, arn: str) -> AdoptedQueue:
    """Read a queue's attributes, and of a source who reads it. Raises `QueueGone` and `CallFailed`."""
    account, name = arn.split(":")[4:]
    sqs = connection.client("sqs")
    with calls("GetQueueUrl", queue=arn):
        url = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    with calls("GetQueueAttributes", queue=arn):
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    readers: set[str] = set()
    if role == SOURCE:
        pages = connection.pages("lambda", "list_event_source_mappings", EventSourceArn=arn)
        readers = {mapping["FunctionArn"] for page in pages for mapping in page["EventSourceMappings"]}
    return AdoptedQueue(role=role, arn=arn, attributes=attributes, readers=readers)
