"""The parameters of split queues' re-pointed consumers, without constructs.

`sluice.splitting.consumers.targets` has the same types and fields, and checks their limits.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Field

from sluice.codec import convert
from sluice.parameters import values as v
from sluice.parameters.values import Model, param
from sluice.splitting.consumers.targets import MAX_CONTAINERS, MAX_STEPS, MAX_TIMEOUT_S, Target

MAX_CONSUMERS = 10  # Limit of re-pointed consumers of one queue.
MAX_ROLES = 10  # Limit of task roles of one ECS consumer.


class PlaceParameters(Model):
    """The part of a setting's value that identifies the queue. Without both fields, it is the whole value."""

    path: tuple[str, ...] = param(
        (),
        "Keys that lead into a JSON value; `[]` stands for each item or value. Empty: the whole value",
        max_length=MAX_STEPS,
    )
    pattern: v.Pattern | None = param(
        None,
        "Regular expression that matches the queue: its group `queue`, else its first group, else the whole match. "
        "Null: the whole value",
    )


class LambdaTriggerParameters(Model):
    """A consumer that reads the queue through a Lambda event source mapping."""

    type: Literal["lambda trigger"]
    function: v.AliasName = param(
        ..., "Name or ARN of the function, with the alias that the event source mapping invokes"
    )


class LambdaVariableParameters(Model):
    """A consumer that reads the queue's name from an environment variable of a Lambda function."""

    type: Literal["lambda variable"]
    function: v.FunctionName = param(..., "Name or ARN of the function")
    variable: v.VariableName = param(..., "Name of the environment variable")
    place: PlaceParameters = param(PlaceParameters(), "Where the value names the queue")


class SystemsManagerParameters(Model):
    """A consumer that reads the queue's name from the Systems Manager Parameter Store."""

    type: Literal["parameter"]
    name: v.ParameterName = param(..., "Name or ARN of the parameter")
    refresh_s: int = param(0, "Seconds for which readers may cache the parameter's value", ge=0, le=86_400)
    place: PlaceParameters = param(PlaceParameters(), "Where the value names the queue")


class EcsVariableParameters(Model):
    """A consumer that reads the queue's name from an environment variable of a container of an ECS service."""

    type: Literal["ecs variable"]
    cluster: v.EcsName = param(..., "Name of the ECS cluster")
    service: v.EcsName = param(..., "Name of the ECS service")
    container: v.EcsName = param(..., "Name of the container")
    variable: v.VariableName = param(..., "Name of the environment variable")
    place: PlaceParameters = param(PlaceParameters(), "Where the value names the queue")
    role_arns: tuple[v.RoleArn, ...] = param(
        (),
        "ARNs of the task role and the execution role, which Sluice must pass to register revisions of the task "
        "definition",
        max_length=MAX_ROLES,
    )


class KubernetesParameters(Model):
    """Environment variables of a workload in an EKS cluster, or a file in one of its ConfigMap volumes."""

    type: Literal["kubernetes"]
    cluster: v.ClusterName = param(..., "Name of the EKS cluster")
    namespace: v.NamespaceName = param(..., "Namespace of the workload")
    kind: Literal["Deployment", "StatefulSet", "Rollout"] = param(
        ..., "Kind of the workload; `Rollout` is Argo Rollouts'"
    )
    name: v.ObjectName = param(..., "Name of the workload")
    containers: tuple[v.NamespaceName, ...] = param(
        (), "Names of the containers. Empty: all containers", max_length=MAX_CONTAINERS
    )
    env: v.VariableName | None = param(None, "Name of the environment variable")
    env_like: v.Pattern | None = param(None, "Regular expression that matches whole names of environment variables")
    fallback: str | None = param(
        None, "Value of `env` if its value is not set in the workload or cannot be read", max_length=2_048
    )
    volume: v.NamespaceName | None = param(None, "Name of a volume that mounts a ConfigMap")
    file: v.ObjectName | None = param(None, "Key of the file in the ConfigMap")
    place: PlaceParameters = param(PlaceParameters(), "Where the value names the queue")
    timeout_s: int = param(600, "Seconds that a rollout may take", ge=1, le=MAX_TIMEOUT_S)
    argo_cd_namespace: v.NamespaceName = param("argocd", "Namespace of the Argo CD Applications")
    agent: bool = param(False, "Whether `sluice split agent` applies the change, for clusters that Lambda cannot reach")


def _to_target(consumer: Model) -> Target:
    fields = consumer.model_dump(exclude={"role_arns"})
    return convert(fields, cast("type[Target]", Target), of="consumer")


ConsumerParameters: TypeAlias = Annotated[
    LambdaTriggerParameters
    | LambdaVariableParameters
    | SystemsManagerParameters
    | EcsVariableParameters
    | KubernetesParameters,
    Field(discriminator="type"),
    v.validator(_to_target),
]


def to_targets(consumers: Sequence[ConsumerParameters]) -> tuple[Target, ...]:
    """Convert consumers' parameters to the form that functions' settings have."""
    return tuple(_to_target(consumer) for consumer in consumers)
