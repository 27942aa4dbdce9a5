"""What a deployment would take away, and what has to end before a stack is deleted."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.deployment import NotDeployed, outputs_of
from sluice.aws.pipeline.jobs import EmrRuns
from sluice.aws.splitting.queues import COUNTS
from sluice.errors import QueueGone, SluiceError
from sluice.pipeline.runs import RunState

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_sqs import SQSClient


QUEUE = "AWS::SQS::Queue"
KEPT = frozenset({"Retain", "RetainExceptOnCreate"})
# CloudFormation makes another queue where one of these changes.
# https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-resource-sqs-queue.html
REPLACING = ("QueueName", "FifoQueue")
AT_REST = frozenset({"CREATED", "STOPPED", "TERMINATED"})
GRACE_S = 60  # for a run to end its batch
LOOK_EVERY_S = 2.0
LOOKS = 300  # ten minutes: a run has a grace period

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
    pages = connection.pages("cloudformation", "list_stack_resources", StackName=stack)
    for found in (each for page in pages for each in page["StackResourceSummaries"]):
        id_, url = found["LogicalResourceId"], found.get("PhysicalResourceId", "")
        if found["ResourceType"] != QUEUE or not url:
            continue
        before, after = deployed["Resources"].get(id_, {}), wanted.get("Resources", {}).get(id_)
        old, new = (each.get("Properties", {}) for each in (before, after or {}))
        if after is not None and all(old.get(name) == new.get(name) for name in REPLACING):
            continue
        try:
            with calls("GetQueueAttributes", queue=url):
                held = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(COUNTS))["Attributes"]
        except QueueGone:
            continue
        messages = sum(int(held[name]) for name in COUNTS)
        policy = before.get("DeletionPolicy" if after is None else "UpdateReplacePolicy")
        yield RemovedQueue(stack=stack, name=url.rsplit("/", 1)[-1], messages=messages, kept=policy in KEPT)


# The pipeline's application: one that has started isn't deleted.
# https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_DeleteApplication.html


class NotStopped(SluiceError):
    """An application goes on, or a run in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """One application. Calls raise `CallFailed`."""

    connection: Connection
    application_id: str

    def end(self, *, now_ms: Callable[[], int], sleep: Callable[[float], None]) -> None:
        """Cancel its runs, and stop it once they have ended; returns when it has stopped. Raises `NotStopped`."""
        client = self.connection.client("emr-serverless")
        runs = EmrRuns(client=client, application_id=self.application_id, role_arn="")
        self._until(lambda: not self._cancel(runs, now_ms()), "a run of it goes on", sleep)
        if self._state() not in AT_REST:
            with calls("StopApplication"):
                client.stop_application(applicationId=self.application_id)
            self._until(lambda: self._state() in AT_REST, "it goes on", sleep)

    def _cancel(self, runs: EmrRuns, now_ms: int) -> bool:
        """Cancel what is live; whether anything was."""
        live = [run for run in runs.all(now_ms=now_ms) if run.live]
        for run in live:
            if run.state is not RunState.CANCELLING:
                runs.cancel(run.run_id, grace_s=GRACE_S)
        return bool(live)

    def _state(self) -> str:
        with calls("GetApplication"):
            found = self.connection.client("emr-serverless").get_application(applicationId=self.application_id)
        return str(found["application"]["state"])

    def _until(self, is_so: Callable[[], bool], fault: str, sleep: Callable[[float], None]) -> None:
        for _ in range(LOOKS):
            if is_so():
                return
            sleep(LOOK_EVERY_S)
        raise NotStopped(f"application {self.application_id} can't be deleted: {fault}")
