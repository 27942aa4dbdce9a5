"""What has a stage's name in an account and region, of the kinds that a throw-away stage makes; and its removal.

Names are by prefix: `sluice.stages` says why no other stage's begin so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.aws.splitting.queues import SplitQueues
from sluice.errors import BadConfiguration, CallFailed

GONE = "DELETE_COMPLETE"
LOG_GROUPS = "/aws/lambda/"  # before a function's name, where Lambda makes the group itself


class NoStage(BadConfiguration):
    """Without a stage every name of the site's begins as others' may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Something that is still there, and the command that removes it."""

    kind: str
    name: str
    remove: str


@dataclass(frozen=True, slots=True)
class StageContents:
    """Of the stage that the connection names; `NoStage` where it names none. Every method may raise `CallFailed`."""

    connection: Connection

    def __post_init__(self) -> None:
        if not self.connection.stage:
            raise NoStage("only a stage's contents can be told by their names")

    @property
    def prefix(self) -> str:
        """What all names of the stage begin with."""
        return f"{self.connection.stage}-"

    def queues(self) -> Mapping[str, str]:
        """Give URLs by names."""
        pages = self.connection.pages("sqs", "list_queues", QueueNamePrefix=self.prefix)
        return {url.rsplit("/", 1)[1]: url for page in pages for url in page.get("QueueUrls", [])}

    def functions(self) -> Sequence[Mapping[str, Any]]:
        """List functions' configurations."""
        pages = self.connection.pages("lambda", "list_functions")
        return [
            function
            for page in pages
            for function in page["Functions"]
            if function["FunctionName"].startswith(self.prefix)
        ]

    def mappings(self) -> Sequence[Mapping[str, Any]]:
        """List event source mappings of the stage's queues and streams."""
        pages = self.connection.pages("lambda", "list_event_source_mappings")
        found = [mapping for page in pages for mapping in page["EventSourceMappings"]]
        return [each for each in found if _names(each.get("EventSourceArn", "")).startswith(self.prefix)]

    def tables(self) -> Sequence[str]:
        """List names."""
        pages = self.connection.pages("dynamodb", "list_tables")
        return [name for page in pages for name in page["TableNames"] if name.startswith(self.prefix)]

    def alarms(self) -> Sequence[Mapping[str, Any]]:
        """List them as CloudWatch describes them, metric alarms and composite ones."""
        pages = self.connection.pages(
            "cloudwatch",
            "describe_alarms",
            AlarmNamePrefix=self.prefix,
            AlarmTypes=["MetricAlarm", "CompositeAlarm"],
        )
        return [each for page in pages for kind in ("MetricAlarms", "CompositeAlarms") for each in page.get(kind, [])]

    def stacks(self) -> Sequence[str]:
        """List names of those that aren't deleted."""
        pages = self.connection.pages("cloudformation", "describe_stacks")
        return [
            stack["StackName"]
            for page in pages
            for stack in page["Stacks"]
            if stack["StackName"].startswith(self.prefix) and stack["StackStatus"] != GONE
        ]

    def resources(self, kind: str) -> Sequence[str]:
        """List physical ids of the stacks' resources of a type."""
        return [
            summary["PhysicalResourceId"]
            for stack in self.stacks()
            for page in self.connection.pages("cloudformation", "list_stack_resources", StackName=stack)
            for summary in page["StackResourceSummaries"]
            if summary["ResourceType"] == kind
            and summary.get("PhysicalResourceId")
            and summary["ResourceStatus"] != GONE
        ]

    def log_groups(self) -> Sequence[str]:
        """List names of functions' and jobs' groups."""
        return [
            group["logGroupName"]
            for start in (self.prefix, LOG_GROUPS + self.prefix)
            for page in self.connection.pages("logs", "describe_log_groups", logGroupNamePrefix=start)
            for group in page["logGroups"]
        ]

    def empty_bucket(self, name: str) -> int:
        """Delete all objects of a bucket of the stage's; how many there were."""
        client, number = self.connection.client("s3"), 0
        for page in self.connection.pages("s3", "list_objects_v2", Bucket=name):
            keys = [{"Key": content["Key"]} for content in page.get("Contents", [])]
            number += len(keys)
            if keys:
                with calls("DeleteObjects"):
                    done = client.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})
                for failed in done.get("Errors", []):
                    raise CallFailed("DeleteObjects", failed["Code"], failed.get("Message", ""))
        return number

    def delete_made_at_run_time(self) -> None:
        """Delete the queues, mappings and logs that no stack has: those that are left when the stacks are gone."""
        sqs, functions, logs = (self.connection.client(each) for each in ("sqs", "lambda", "logs"))
        for mapping in self.mappings():
            with calls("DeleteEventSourceMapping"):
                functions.delete_event_source_mapping(UUID=mapping["UUID"])
        for name, url in self.queues().items():
            SplitQueues(sqs, url).delete(name)
        for group in self.log_groups():
            with calls("DeleteLogGroup"):
                logs.delete_log_group(logGroupName=group)

    def left(self, *, buckets: Sequence[str] = ()) -> Sequence[Left]:
        """List what is still there, of `buckets` those that exist. A deleted queue may be listed for a minute."""
        return [
            *(_left("stack", name, f"aws cloudformation delete-stack --stack-name {name}") for name in self.stacks()),
            *(_left("queue", name, f"aws sqs delete-queue --queue-url {url}") for name, url in self.queues().items()),
            *(
                _left("mapping", mapping["UUID"], f"aws lambda delete-event-source-mapping --uuid {mapping['UUID']}")
                for mapping in self.mappings()
                if mapping.get("State") != "Deleting"
            ),
            *(_left("table", name, f"aws dynamodb delete-table --table-name {name}") for name in self.tables()),
            *(_left("logs", name, f"aws logs delete-log-group --log-group-name {name}") for name in self.log_groups()),
            *(_left("bucket", name, f"aws s3 rb --force s3://{name}") for name in buckets if self._has_bucket(name)),
        ]

    def _has_bucket(self, name: str) -> bool:
        try:
            with calls("HeadBucket"):
                self.connection.client("s3").head_bucket(Bucket=name)
        except CallFailed as error:
            if error.code == "404":
                return False
            raise
        return True


def _left(kind: str, name: str, remove: str) -> Left:
    return Left(kind=kind, name=name, remove=remove)


def _names(arn: str) -> str:
    """Give what the ARN of a queue, or of a table's stream, names; nothing for none."""
    return arn.split(":", 5)[-1].removeprefix("table/")
