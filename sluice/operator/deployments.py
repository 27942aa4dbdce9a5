"""Finds queues that a deployment would remove or can't create yet, and stops Spark before its stack is deleted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.aws.client_types import CloudFormationClient, SQSClient
from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotDeployed, fetch_outputs, read_stack_outputs
from sluice.aws.pipeline.endpoints import Ec2Endpoints
from sluice.aws.pipeline.jobs import EmrRuns
from sluice.aws.splitting.queues import COUNTS
from sluice.aws.splitting.registry_store import DynamoRegistryStore
from sluice.errors import QueueGone, SluiceError
from sluice.operator.functions import SPLITTING
from sluice.pipeline.runs import RunState
from sluice.splitting.sessions.state import Registry

QUEUE = "AWS::SQS::Queue"
RETAIN_POLICIES = frozenset({"Retain", "RetainExceptOnCreate"})
# CloudFormation replaces a queue when one of these properties changes.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sqs-queue.html
REPLACEMENT_PROPERTIES = ("QueueName", "FifoQueue")
# SQS refuses the name of a deleted queue for 60 seconds. Terraform's developers saw up to 70 seconds.
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_DeleteQueue.html
# https://github.com/hashicorp/terraform-provider-aws/pull/3148
NAME_TAKEN_S = 70.0
DELETION_LASTS = timedelta(hours=1)  # Only queues of stacks that were deleted within this time are checked.
STOPPED_STATES = frozenset({"CREATED", "STOPPED", "TERMINATED"})
GRACE_S = 60  # A cancelled run of a Spark job has this number of seconds to finish its batch.
POLL_INTERVAL_S = 2.0
MAX_POLLS = 300  # The application is polled for at most ten minutes, which is longer than a run's grace period.

Template = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedQueue:
    """A queue that a deployment removes from its stack. `message_count` includes messages in flight and delayed ones.

    If `is_retained`, CloudFormation doesn't delete the queue, which is then outside of any stack and has no consumer.
    """

    stack_name: str
    name: str
    message_count: int
    is_retained: bool


def is_deployed(connection: Connection, stack: str) -> bool:
    """Return whether the stack is deployed. Raises `NotUsable`, `CallFailed`."""
    try:
        fetch_outputs(connection, stack)
    except NotDeployed:
        return False
    return True


def read_template(connection: Connection, stack: str) -> Template | None:
    """Return the template of a deployed stack; None if the stack isn't deployed. Raises `NotUsable`, `CallFailed`."""
    if not is_deployed(connection, stack):
        return None
    client: CloudFormationClient = connection.client("cloudformation")
    with calls("GetTemplate"):
        # The template was deployed as JSON, because CDK writes JSON. Therefore boto3 returns a decoded document.
        template: Template = client.get_template(StackName=stack, TemplateStage="Processed")["TemplateBody"]
    return template


def find_removed_queues(connection: Connection, templates: Mapping[str, Template]) -> Iterable[RemovedQueue]:
    """Yield deployed queues that the new templates would remove or replace. Raises `NotUsable`, `CallFailed`."""
    sqs: SQSClient = connection.client("sqs")
    for stack, template in templates.items():
        deployed = read_template(connection, stack)
        if deployed is None:
            continue
        pages = connection.pages("cloudformation", "list_stack_resources", StackName=stack)
        for resource in (summary for page in pages for summary in page["StackResourceSummaries"]):
            id_, url = resource["LogicalResourceId"], resource.get("PhysicalResourceId", "")
            if resource["ResourceType"] != QUEUE or not url:
                continue
            before, after = deployed["Resources"].get(id_, {}), template.get("Resources", {}).get(id_)
            old, new = (definition.get("Properties", {}) for definition in (before, after or {}))
            if after is not None and all(old.get(name) == new.get(name) for name in REPLACEMENT_PROPERTIES):
                continue
            try:
                with calls("GetQueueAttributes", queue=url):
                    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(COUNTS))["Attributes"]
            except QueueGone:
                continue
            message_count = sum(int(attributes[name]) for name in COUNTS)
            is_retained = before.get("DeletionPolicy" if after is None else "UpdateReplacePolicy") in RETAIN_POLICIES
            name = url.rsplit("/", 1)[-1]
            yield RemovedQueue(stack_name=stack, name=name, message_count=message_count, is_retained=is_retained)


def read_registry(connection: Connection) -> Registry:
    """Read the registry of split queues from DynamoDB; empty if it isn't deployed. Works even if functions are broken.

    Raises `NotUsable`, `CallFailed`, `BadSnapshot`.
    """
    try:
        table = read_stack_outputs(connection, SPLITTING[0]).get("SplittingTableName")
    except NotDeployed:
        table = None
    return DynamoRegistryStore(connection.client("dynamodb"), table).load()[0] if table else Registry()


def find_taken_names(
    connection: Connection, templates: Mapping[str, Template], *, now_ms: Callable[[], int]
) -> Mapping[str, float]:
    """Return the names in `templates` that SQS still refuses for new queues, with the seconds until SQS allows them.

    Queues of deleted stacks had these names. Raises `CallFailed`.
    """
    names = {
        stack: {resource.get("Properties", {}).get("QueueName") for resource in template["Resources"].values()}
        for stack, template in templates.items()
    }
    taken: dict[str, float] = {}
    now = datetime.fromtimestamp(now_ms() / 1000, UTC)
    stacks = connection.pages("cloudformation", "list_stacks", StackStatusFilter=["DELETE_COMPLETE"])
    for deleted in (summary for page in stacks for summary in page["StackSummaries"]):
        queue_names = names.get(deleted["StackName"], set())
        if not queue_names or now - deleted.get("DeletionTime", now) > DELETION_LASTS:
            continue
        events = connection.pages("cloudformation", "describe_stack_events", StackName=deleted["StackId"])
        for event in (event for page in events for event in page["StackEvents"]):
            name = event.get("PhysicalResourceId", "").rsplit("/", 1)[-1]
            left_s = NAME_TAKEN_S - (now - event["Timestamp"]).total_seconds()
            if event["ResourceStatus"] == "DELETE_COMPLETE" and name in queue_names and left_s > 0:
                taken[name] = max(left_s, taken.get(name, 0))
    return taken


class NotStopped(SluiceError):
    """Raised if an EMR Serverless application, or one of its runs, did not stop in time."""


def end_application(
    connection: Connection, application_id: str, *, now_ms: Callable[[], int], sleep: Callable[[float], None]
) -> None:
    """Cancel an EMR Serverless application's runs, stop the application, and delete its VPC endpoints. Waits for each.

    CloudFormation can't delete a running application, or a network with endpoints that it did not create:
    https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_DeleteApplication.html

    Raises `NotStopped`, `CallFailed`.
    """
    client = connection.client("emr-serverless")
    runs = EmrRuns(client=client, application_id=application_id, role_arn="")

    def have_runs_ended() -> bool:
        live = [run for run in runs.list_runs(now_ms=now_ms()) if run.is_live]
        for run in live:
            if run.state is not RunState.CANCELLING:
                runs.cancel(run.run_id, grace_s=GRACE_S)
        return not live

    def has_stopped() -> bool:
        with calls("GetApplication"):
            response = client.get_application(applicationId=application_id)
        return str(response["application"]["state"]) in STOPPED_STATES

    def wait_until(condition: Callable[[], bool], error: str) -> None:
        for _ in range(MAX_POLLS):
            if condition():
                return
            sleep(POLL_INTERVAL_S)
        raise NotStopped(f"application {application_id} can't be deleted: {error}")

    wait_until(have_runs_ended, "one of its runs has not ended")
    if not has_stopped():
        with calls("StopApplication"):
            client.stop_application(applicationId=application_id)
        wait_until(has_stopped, "it has not stopped")
    endpoints = Ec2Endpoints(client=connection.client("ec2"), application_id=application_id)
    wait_until(endpoints.delete_all, "its network still has VPC endpoints")
