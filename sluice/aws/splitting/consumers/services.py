"""Re-points ECS services by an environment variable of one container.

Revisions of task definitions are immutable, so a new value needs a new revision, which the service then deploys.
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/update-task-definition.html Revisions that name temporary
queues are tagged, and are deregistered after the last session. Otherwise the next deployment, which often copies a
family's latest revision, would name temporary queues again.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from operator import itemgetter
from typing import Any, cast

import msgspec

from sluice.aws.clients import calls
from sluice.codec import encode
from sluice.errors import BadConsumer, CallFailed
from sluice.splitting.consumers.rewriting import check_named, rewrite
from sluice.splitting.consumers.targets import EcsVariable, describe_target
from sluice.splitting.consumers.temporary_queues import PREFIX

TEMPORARY = "sluice-temporary"  # Task definition revisions that name temporary queues have this tag.
MAX_DEREGISTERED = 20  # One call deregisters at most this many task definition revisions.
UNKNOWN = "ClientException"  # ECS returns this error code for a deleted revision.


class _Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A revision of a task definition. `fields` are the arguments that register the same revision, except its tags."""

    arn: str
    is_active: bool
    fields: Mapping[str, Any]
    tags: tuple[dict[str, str], ...]

    @property
    def is_temporary(self) -> bool:
        return any(tag["key"] == TEMPORARY for tag in self.tags)


class EcsServices(msgspec.Struct, frozen=True, kw_only=True):
    """Re-points ECS services. `arn_prefix` is the ARN of the site's queues up to their names."""

    client: Any  # This client has no type because boto3-stubs[ecs] is not installed.
    arn_prefix: str

    def read_original(self, target: EcsVariable, *, queue: str) -> str:
        """Return the service's task definition, which must name the queue. Raises `BadConsumer`, `CallFailed`."""
        revision = self._describe_revision(self._describe_service(target)["taskDefinition"])
        value = _find_variable(target, revision.fields)["value"]
        check_named(value, target.place, queue=self.arn_prefix + queue, of=describe_target(target))
        return revision.arn

    def read_role(self, target: EcsVariable) -> str:
        """Return the ARN of the tasks' role; "" without one, if tasks use their instance's role."""
        revision = self._describe_revision(self._describe_service(target)["taskDefinition"])
        return str(revision.fields.get("taskRoleArn", ""))

    def point(self, target: EcsVariable, original: str, *, queue: str, instead_of: Collection[str]) -> bool:
        """Deploy a revision that names `queue` to the service. Returns True once no task of another revision runs.

        If the original or the family's latest revision already names the queue, no revision is registered. Raises
        `BadConsumer`, or `CallFailed`, also if ECS gave up the deployment.
        """
        service = self._describe_service(target)
        revision = self._describe_revision(service["taskDefinition"])
        fields = deepcopy(revision.fields)
        variable, of = _find_variable(target, fields), describe_target(target)
        old, new = [self.arn_prefix + name for name in instead_of], self.arn_prefix + queue
        variable["value"] = rewrite(variable["value"], target.place, old=old, new=new, of=of)
        if fields != revision.fields:
            arn = self._find_revision(fields, original) or self._register_revision(fields, revision.tags)
            with calls("UpdateService"):
                self.client.update_service(cluster=target.cluster, service=target.service, taskDefinition=arn)
            return False
        primary = next(deployment for deployment in service["deployments"] if deployment["status"] == "PRIMARY")
        state = primary.get("rolloutState", "COMPLETED")  # ECS sends no state behind a Classic Load Balancer.
        if state == "FAILED":
            raise CallFailed("UpdateService", state, primary.get("rolloutStateReason", ""))
        runs_all = primary["runningCount"] == primary["desiredCount"] and not primary["pendingCount"]
        is_complete = len(service["deployments"]) == 1 and state == "COMPLETED" and runs_all
        if not is_complete or self._has_stopping_tasks(target, revision.arn):
            return False
        # Deregister the family's latest revisions that name temporary queues, except the running one.
        for _ in range(MAX_DEREGISTERED):
            latest = self._describe_revision(revision.fields["family"])
            if not latest.is_temporary or latest.arn == revision.arn:
                break
            with calls("DeregisterTaskDefinition"):
                self.client.deregister_task_definition(taskDefinition=latest.arn)
        return True

    def _describe_service(self, target: EcsVariable) -> dict[str, Any]:
        with calls("DescribeServices"):
            response = self.client.describe_services(cluster=target.cluster, services=[target.service])["services"]
        if not response or response[0]["status"] == "INACTIVE":
            raise BadConsumer(describe_target(target), "there is no such service")
        controller = response[0].get("deploymentController", {}).get("type", "ECS")
        if controller != "ECS":
            raise BadConsumer(describe_target(target), f"the service is deployed by {controller}, and not by ECS")
        return cast("dict[str, Any]", response[0])

    def _describe_revision(self, arn_or_family: str) -> _Revision:
        with calls("DescribeTaskDefinition"):
            response = self.client.describe_task_definition(taskDefinition=arn_or_family, include=["TAGS"])
        definition = response["taskDefinition"]
        # Copy all fields that `RegisterTaskDefinition` accepts, including those that this program doesn't know.
        known = self.client.meta.service_model.operation_model("RegisterTaskDefinition").input_shape.members
        fields = {key: value for key, value in definition.items() if key in known}
        for container in fields["containerDefinitions"]:
            # ECS returns variables in any order; sorted variables can be compared.
            container["environment"] = sorted(container.get("environment", []), key=itemgetter("name"))
        return _Revision(
            arn=definition["taskDefinitionArn"],
            is_active=definition["status"] == "ACTIVE",
            fields=fields,
            tags=tuple(response.get("tags", [])),
        )

    def _find_revision(self, fields: Mapping[str, Any], original: str) -> str | None:
        """Find an existing revision with these fields: the original, or one that was registered before a crash."""
        for arn_or_family in (original, fields["family"]):
            try:
                revision = self._describe_revision(arn_or_family)
            except CallFailed as error:
                if error.code != UNKNOWN:
                    raise
                continue
            if revision.is_active and revision.fields == fields:
                return revision.arn
        return None

    def _register_revision(self, fields: Mapping[str, Any], tags: tuple[dict[str, str], ...]) -> str:
        kept = [tag for tag in tags if tag["key"] != TEMPORARY]
        if PREFIX.encode() in encode(fields["containerDefinitions"]):
            kept.append({"key": TEMPORARY, "value": "true"})
        with calls("RegisterTaskDefinition"):
            # ECS refuses an empty list of tags.
            made = self.client.register_task_definition(**fields, **({"tags": kept} if kept else {}))
        return cast("str", made["taskDefinition"]["taskDefinitionArn"])

    def _has_stopping_tasks(self, target: EcsVariable, arn: str) -> bool:
        """Return whether tasks of other revisions are still stopping. Such tasks may still process a message."""
        of_service = {"cluster": target.cluster, "serviceName": target.service, "desiredStatus": "STOPPED"}
        with calls("ListTasks"):
            pages = [page["taskArns"] for page in self.client.get_paginator("list_tasks").paginate(**of_service)]
        with calls("DescribeTasks"):
            return any(
                task["lastStatus"] != "STOPPED" and task["taskDefinitionArn"] != arn
                for task_arns in filter(None, pages)
                for task in self.client.describe_tasks(cluster=target.cluster, tasks=task_arns)["tasks"]
            )


def _find_variable(target: EcsVariable, fields: Mapping[str, Any]) -> dict[str, str]:
    """Find the variable in the target's container. Raises `BadConsumer` if the container doesn't set it."""
    for container in fields["containerDefinitions"]:
        for variable in container.get("environment", []) if container["name"] == target.container else ():
            if variable["name"] == target.variable:
                return cast("dict[str, str]", variable)
    raise BadConsumer(describe_target(target), "isn't set in the task definition, or is a secret or of a file")
