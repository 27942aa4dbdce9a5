"""Queues that others own, as they are before they are adopted."""

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.splitting.adoption import SOURCE, AdoptedQueue


def look(connection: Connection, role: str, arn: str) -> AdoptedQueue:
    """Read a queue's attributes, and of a source who reads it. Raises `QueueGone` and `CallFailed`."""
    account, name = arn.split(":")[4:]
    sqs = connection.client("sqs")
    with calls("GetQueueUrl", queue=arn):
        url = sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"]
    with calls("GetQueueAttributes", queue=arn):
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return AdoptedQueue(
        role=role, arn=arn, attributes=attributes, readers=_readers(connection, arn) if role == SOURCE else ()
    )


def _readers(connection: Connection, arn: str) -> set[str]:
    """List the functions whose triggers read the queue."""
    pages = iter(connection.client("lambda").get_paginator("list_event_source_mappings").paginate(EventSourceArn=arn))
    found = set[str]()
    while True:
        with calls("ListEventSourceMappings"):
            page = next(pages, None)
        if page is None:
            return found
        found |= {mapping["FunctionArn"] for mapping in page["EventSourceMappings"]}
