"""What a deployment would take away: the queues of deployed stacks that the new templates don't have any more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.operator.connections import Connection
from sluice.aws.operator.deployment import NotDeployed, outputs_of
from sluice.aws.splitting.queues import COUNTS
from sluice.errors import QueueGone

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_sqs import SQSClient

QUEUE = "AWS::SQS::Queue"
KEPT = frozenset({"Retain", "RetainExceptOnCreate"})
# CloudFormation makes another queue where one of these changes.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sqs-queue.html
REPLACING = ("QueueName", "FifoQueue")

Template = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedQueue:
    """A queue that goes from its stack. `messages` are in it, those in flight and delayed ones too.

    `kept` where CloudFormation leaves it: as nobody's, with nobody who reads it.
    """

    stack: str
    name: str
    messages: int
    kept: bool


def is_deployed(connection: Connection, stack: str) -> bool:
    """Whether there is such a stack. Raises `NotUsable`, `CallFailed`."""
    try:
        outputs_of(connection, stack)
    except NotDeployed:
        return False
    return True


def removed_queues(connection: Connection, wanted: Mapping[str, Template]) -> Iterable[RemovedQueue]:
    """Compare deployed stacks with what is `wanted` of them, by the stacks' names. Raises `NotUsable`, `CallFailed`."""
    for stack, template in wanted.items():
        if is_deployed(connection, stack):
            yield from _removed(connection, stack, template)


def _removed(connection: Connection, stack: str, wanted: Template) -> Iterable[RemovedQueue]:
    client: CloudFormationClient = connection.client("cloudformation")
    sqs: SQSClient = connection.client("sqs")
    with calls("GetTemplate"):
        # JSON, as CDK writes it: boto3 reads it then.
        deployed: Template = client.get_template(StackName=stack, TemplateStage="Processed")["TemplateBody"]
    with calls("ListStackResources"):
        pages = list(client.get_paginator("list_stack_resources").paginate(StackName=stack))
    for found in (each for page in pages for each in page["StackResourceSummaries"]):
        id_, url = found["LogicalResourceId"], found.get("PhysicalResourceId", "")
        if found["ResourceType"] != QUEUE or not url:
            continue
        before, after = deployed["Resources"].get(id_, {}), wanted.get("Resources", {}).get(id_)
        if after is not None and not _is_replaced(before, after):
            continue
        try:
            messages = _count(sqs, url)
        except QueueGone:
            continue
        policy = before.get("DeletionPolicy" if after is None else "UpdateReplacePolicy")
        yield RemovedQueue(stack=stack, name=url.rsplit("/", 1)[-1], messages=messages, kept=policy in KEPT)


def _is_replaced(before: Template, after: Template) -> bool:
    properties = before.get("Properties", {}), after.get("Properties", {})
    return any(properties[0].get(name) != properties[1].get(name) for name in REPLACING)


def _count(sqs: "SQSClient", url: str) -> int:
    with calls("GetQueueAttributes", queue=url):
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(COUNTS))["Attributes"]
    return sum(int(found[name]) for name in COUNTS)
