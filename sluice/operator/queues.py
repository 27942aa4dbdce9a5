"""Finds queues by name, and reads attributes of existing queues that a site is about to adopt."""

import json
import re
from contextlib import suppress

from sluice.aws.client_types import SQSClient
from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotUsable, list_outputs
from sluice.errors import CallFailed, QueueGone
from sluice.splitting.adoption import SOURCE, AdoptedQueue

FEDERATION_STACK = "SluiceFederation"
QUEUE_OUTPUT = re.compile(r"Queue\w+Url")


def find_queue_url(connection: Connection, name: str) -> str:
    """Find a queue's URL by its name in SQS, its name in cdk.json, or the URL. Raises `QueueGone`, `CallFailed`."""
    if name.startswith(("http://", "https://")):
        return name
    # A stack output with a queue's URL has the queue's name in cdk.json as description. The stack may not exist.
    with suppress(CallFailed, NotUsable):
        for output in list_outputs(connection, FEDERATION_STACK):
            if output.get("Description") == name and QUEUE_OUTPUT.fullmatch(output["OutputKey"]):
                return output["OutputValue"]
    client: SQSClient = connection.client("sqs")
    with calls("GetQueueUrl", queue=name):
        return client.get_queue_url(QueueName=name)["QueueUrl"]


def queue_arn(connection: Connection, url: str) -> str:
    """Convert the URL of a queue in the connection's region into its ARN."""
    *_, account, name = url.split("/")
    partition = connection.session.get_partition_for_region(connection.region)
    return f"arn:{partition}:sqs:{connection.region}:{account}:{name}"


def read_adopted_queue(connection: Connection, role: str, arn: str) -> AdoptedQueue:
    """Read the attributes of a queue and its dead-letter queue, and the functions and alarms of a source queue.

    Raises `QueueGone`, `CallFailed`.
    """
    attributes, dead_letter = _read_attributes(connection, arn), dict[str, str]()
    if target := json.loads(attributes.get("RedrivePolicy") or "{}").get("deadLetterTargetArn"):
        with suppress(QueueGone):
            dead_letter = _read_attributes(connection, target)
    readers, watchers = set[str](), set[str]()
    if role == SOURCE:
        dimension = {"Name": "QueueName", "Value": arn.rpartition(":")[2]}
        with suppress(CallFailed):  # Users without the permission to read alarms can register queues, too.
            for page in connection.pages("cloudwatch", "describe_alarms"):
                alarms = page["MetricAlarms"]
                watchers |= {alarm["AlarmName"] for alarm in alarms if dimension in alarm.get("Dimensions", [])}
        pages = connection.pages("lambda", "list_event_source_mappings", EventSourceArn=arn)
        readers = {mapping["FunctionArn"] for page in pages for mapping in page["EventSourceMappings"]}
    return AdoptedQueue(
        role=role, arn=arn, attributes=attributes, dead_letter=dead_letter, readers=readers, watchers=watchers
    )


def _read_attributes(connection: Connection, arn: str) -> dict[str, str]:
    account, name = arn.split(":")[4:]
    sqs = connection.client("sqs")
    with calls("GetQueueUrl", queue=arn):
        url = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    with calls("GetQueueAttributes", queue=arn):
        return dict[str, str](sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])
