"""Environment variables of containers that ECS services run.

A task definition never changes: another value is another revision, to which the service rolls over.
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/update-task-definition.html
Revisions that name temporary queues are tagged, and deregistered when nothing is split any more: else the next
deployment, which often starts from a family's latest revision, would carry their queues on.
"""

from collections.abc import Mapping
from copy import deepcopy
from operator import itemgetter
from typing import Any

import msgspec

from sluice.aws.clients import calls
from sluice.codec import encode
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import EcsVariable, describe_target
from sluice.splitting.consumers.temporary_queues import PREFIX

TEMPORARY = "sluice-temporary"  # the tag of revisions that name temporary queues
MAX_TIDIED = 20  # revisions at once
UNKNOWN = "ClientException"  # what ECS says of a revision that was deleted


class _Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision of a task definition: `fields` are those of its registration, besides its tags."""

    arn: str
    is_active: bool
    fields: Mapping[str, Any]
    tags: tuple[dict[str, str], ...]

    @property
    def is_temporary(self) -> bool:
        return any(tag["key"] == TEMPORARY for tag in self.tags)


class EcsServices(msgspec.Struct, frozen=True, kw_only=True):
    """Through a client of ECS. `arn_prefix` is an ARN of the site's queues without the name."""

    client: Any  # boto3-stubs[ecs] isn't among the packages
    arn_prefix: str

    def original(self, target: EcsVariable, *, queue: str) -> str:
        """Read the ARN of the service's task definition, which names the queue. Raises `BadConsumer`, `CallFailed`."""
        revision = self._revision(self._service(target)["taskDefinition"])
        value = _variable(target, revision.fields)["value"]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=describe_target(target))
        return revision.arn

    def point(self, target: EcsVariable, original: str, *, queue: str, instead_of: str) -> bool:
        """Run a revision of the service that names another queue; True once no other revision runs.

        Where the original or the family's latest revision is just that, none is registered. Raises `BadConsumer`, and
        `CallFailed`, also where ECS gave the roll-over up.
        """
        service = self._service(target)
        revision = self._revision(service["taskDefinition"])
        fields = deepcopy(revision.fields)
        variable, of = _variable(target, fields), describe_target(target)
        old, new = self.arn_prefix + instead_of, self.arn_prefix + queue
        variable["value"] = rewrite(variable["value"], target.place, old=old, new=new, of=of)
        if fields != revision.fields:
            arn = self._find_revision(fields, original) or self._register(fields, revision.tags)
            with calls("UpdateService"):
                self.client.update_service(cluster=target.cluster, service=target.service, taskDefinition=arn)
            return False
        primary = next(deployment for deployment in service["deployments"] if deployment["status"] == "PRIMARY")
        state = primary.get("rolloutState", "COMPLETED")  # behind a Classic Load Balancer it has none
        if state == "FAILED":
            raise CallFailed("UpdateService", state, primary.get("rolloutStateReason", ""))
        runs_all = primary["runningCount"] == primary["desiredCount"] and not primary["pendingCount"]
        is_complete = len(service["deployments"]) == 1 and state == "COMPLETED" and runs_all
        if not is_complete or self._is_stopping(target, revision.arn):
            return False
        # The family's latest revisions that name temporary queues are over, but for the one that runs.
        for _ in range(MAX_TIDIED):
            latest = self._revision(revision.fields["family"])
            if not latest.is_temporary or latest.arn == revision.arn:
                break
            with calls("DeregisterTaskDefinition"):
                self.client.deregister_task_definition(taskDefinition=latest.arn)
        return True

    def _service(self, target: EcsVariable) -> dict[str, Any]:
        with calls("DescribeServices"):
            response = self.client.describe_services(cluster=target.cluster, services=[target.service])["services"]
        if not response or response[0]["status"] == "INACTIVE":
            raise BadConsumer(describe_target(target), "there is no such service")
        service: dict[str, Any] = response[0]
        controller = service.get("deploymentController", {}).get("type", "ECS")
        if controller != "ECS":
            raise BadConsumer(describe_target(target), f"the service is deployed by {controller}, and not by ECS")
        return service

    def _revision(self, arn_or_family: str) -> _Revision:
        with calls("DescribeTaskDefinition"):
            response = self.client.describe_task_definition(taskDefinition=arn_or_family, include=["TAGS"])
        definition = response["taskDefinition"]
        # Whatever a definition can be registered with, also what this program doesn't know of.
        known = self.client.meta.service_model.operation_model("RegisterTaskDefinition").input_shape.members
        fields = {key: value for key, value in definition.items() if key in known}
        for container in fields["containerDefinitions"]:
            # ECS gives them in any order.
            container["environment"] = sorted(container.get("environment", []), key=itemgetter("name"))
        return _Revision(
            arn=definition["taskDefinitionArn"],
            is_active=definition["status"] == "ACTIVE",
            fields=fields,
            tags=tuple(response.get("tags", [])),
        )

    def _find_revision(self, fields: Mapping[str, Any], original: str) -> str | None:
        """Find a revision that is so already: the original, or one registered before a crash."""
        for arn_or_family in (original, fields["family"]):
            try:
                revision = self._revision(arn_or_family)
            except CallFailed as error:
                if error.code != UNKNOWN:
                    raise
                continue
            if revision.is_active and revision.fields == fields:
                return revision.arn
        return None

    def _register(self, fields: Mapping[str, Any], tags: tuple[dict[str, str], ...]) -> str:
        kept = [tag for tag in tags if tag["key"] != TEMPORARY]
        if PREFIX.encode() in encode(fields["containerDefinitions"]):
            kept.append({"key": TEMPORARY, "value": "true"})
        with calls("RegisterTaskDefinition"):
            # ECS refuses an empty list of tags.
            made = self.client.register_task_definition(**fields, **({"tags": kept} if kept else {}))
        arn: str = made["taskDefinition"]["taskDefinitionArn"]
        return arn

    def _is_stopping(self, target: EcsVariable, arn: str) -> bool:
        """Whether tasks of other revisions are still stopping: they may still process a message."""
        pages = iter(
            self.client.get_paginator("list_tasks").paginate(
                cluster=target.cluster, serviceName=target.service, desiredStatus="STOPPED"
            )
        )
        while True:
            with calls("ListTasks"):
                page = next(pages, None)
            if page is None:
                return False
            if not page["taskArns"]:
                continue
            with calls("DescribeTasks"):
                tasks = self.client.describe_tasks(cluster=target.cluster, tasks=page["taskArns"])["tasks"]
            if any(task["lastStatus"] != "STOPPED" and task["taskDefinitionArn"] != arn for task in tasks):
                return True


def _variable(target: EcsVariable, fields: Mapping[str, Any]) -> dict[str, str]:
    """Find the variable among its container's. Raises `BadConsumer` where it isn't set there."""
    for container in fields["containerDefinitions"]:
        if container["name"] == target.container:
            for variable in container.get("environment", []):
                if variable["name"] == target.variable:
                    response: dict[str, str] = variable
                    return response
    raise BadConsumer(describe_target(target), "isn't set in the task definition, or is a secret or of a file")
