"""Finds queues that a deployment would remove, and stops the Spark application before its stack is deleted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotDeployed, fetch_outputs
from sluice.aws.pipeline.jobs import EmrRuns
from sluice.aws.splitting.queues import COUNTS
from sluice.errors import QueueGone, SluiceError
from sluice.pipeline.runs import RunState

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_sqs import SQSClient


QUEUE = "AWS::SQS::Queue"
RETAIN_POLICIES = frozenset({"Retain", "RetainExceptOnCreate"})
# CloudFormation replaces a queue when one of these properties changes.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sqs-queue.html
REPLACEMENT_PROPERTIES = ("QueueName", "FifoQueue")
STOPPED_STATES = frozenset({"CREATED", "STOPPED", "TERMINATED"})
GRACE_S = 60  # for a cancelled run to finish its batch
POLL_INTERVAL_S = 2.0
MAX_POLLS = 300  # ten minutes in all, which covers a run's grace period

Template = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedQueue:
    """A queue that the deployment removes from its stack. `messages` includes those in flight and delayed.

    `kept` means that CloudFormation retains the queue, outside of any stack and without a consumer.
    """

    stack: str
    name: str
    messages: int
    kept: bool


def is_deployed(connection: Connection, stack: str) -> bool:
    """Return whether the stack is deployed. Raises `NotUsable`, `CallFailed`."""
    try:
        fetch_outputs(connection, stack)
    except NotDeployed:
        return False
    return True


def find_removed_queues(connection: Connection, templates: Mapping[str, Template]) -> Iterable[RemovedQueue]:
    """Compare deployed stacks with their new templates, by stack name. Raises `NotUsable`, `CallFailed`."""
    for stack, template in templates.items():
        if is_deployed(connection, stack):
            yield from _find_removed_in_stack(connection, stack, template)


def _find_removed_in_stack(connection: Connection, stack: str, template: Template) -> Iterable[RemovedQueue]:
    client: CloudFormationClient = connection.client("cloudformation")
    sqs: SQSClient = connection.client("sqs")
    with calls("GetTemplate"):
        # boto3 decodes the template because CDK writes it as JSON.
        deployed: Template = client.get_template(StackName=stack, TemplateStage="Processed")["TemplateBody"]
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
        messages = sum(int(attributes[name]) for name in COUNTS)
        policy = before.get("DeletionPolicy" if after is None else "UpdateReplacePolicy")
        yield RemovedQueue(stack=stack, name=url.rsplit("/", 1)[-1], messages=messages, kept=policy in RETAIN_POLICIES)


# EMR Serverless deletes an application only if it is stopped.
# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_DeleteApplication.html


class NotStopped(SluiceError):
    """The application, or one of its runs, did not stop in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An EMR Serverless application. Its methods raise `CallFailed`."""

    connection: Connection
    application_id: str

    def end(self, *, now_ms: Callable[[], int], sleep: Callable[[float], None]) -> None:
        """Cancel the runs, wait for them, stop the application, and wait until it has stopped. Raises `NotStopped`."""
        client = self.connection.client("emr-serverless")
        runs = EmrRuns(client=client, application_id=self.application_id, role_arn="")
        self._wait_until(lambda: not self._cancel_live_runs(runs, now_ms()), "one of its runs has not ended", sleep)
        if self._state() not in STOPPED_STATES:
            with calls("StopApplication"):
                client.stop_application(applicationId=self.application_id)
            self._wait_until(lambda: self._state() in STOPPED_STATES, "it has not stopped", sleep)

    def _cancel_live_runs(self, runs: EmrRuns, now_ms: int) -> bool:
        """Cancel live runs; return whether there were any."""
        live = [run for run in runs.all(now_ms=now_ms) if run.is_live]
        for run in live:
            if run.state is not RunState.CANCELLING:
                runs.cancel(run.run_id, grace_s=GRACE_S)
        return bool(live)

    def _state(self) -> str:
        with calls("GetApplication"):
            response = self.connection.client("emr-serverless").get_application(applicationId=self.application_id)
        return str(response["application"]["state"])

    def _wait_until(self, is_so: Callable[[], bool], fault: str, sleep: Callable[[float], None]) -> None:
        for _ in range(MAX_POLLS):
            if is_so():
                return
            sleep(POLL_INTERVAL_S)
        raise NotStopped(f"application {self.application_id} can't be deleted: {fault}")
