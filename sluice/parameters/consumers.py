"""Consumers of split queues that are re-pointed, as parameters, and as functions know them. No construct is here.

The kinds and their fields are those of `sluice.splitting.consumers.targets`, which has the last word on their limits.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Field

from sluice.codec import convert
from sluice.parameters import values as v
from sluice.parameters.values import Model, of
from sluice.splitting.consumers.targets import MAX_CONTAINERS, MAX_STEPS, MAX_TIMEOUT_S, Target

CONSUMERS_MOST = 10  # of a queue
ROLES_MOST = 10  # of a task definition's revisions


class PlaceParameters(Model):
    """Where in a text the queue is named; the whole text, where neither is given."""

    path: tuple[str, ...] = of((), "keys that lead into JSON, and `[]` for each item or value", max_length=MAX_STEPS)
    pattern: v.Pattern | None = of(
        None, "a regular expression, whose group `queue`, else its first one, else all that it matches is the queue"
    )


class LambdaTriggerParameters(Model):
    """The event source mapping between the queue and a function."""

    type: Literal["lambda trigger"]
    function: v.AliasName = of(..., "by name or ARN, with the alias that the mapping is of")


class LambdaVariableParameters(Model):
    """An environment variable of a function."""

    type: Literal["lambda variable"]
    function: v.FunctionName = of(..., "by name or ARN")
    variable: v.VariableName = of(..., "its name")
    place: PlaceParameters = of(PlaceParameters(), "where in its text the queue is named")


class SystemsManagerParameters(Model):
    """A parameter of Systems Manager."""

    type: Literal["parameter"]
    name: v.ParameterName = of(..., "or its ARN")
    refresh_s: int = of(0, "how long its readers may go on with what they have read", ge=0, le=86_400)
    place: PlaceParameters = of(PlaceParameters(), "where in its text the queue is named")


class EcsVariableParameters(Model):
    """An environment variable of a container of a service's tasks."""

    type: Literal["ecs variable"]
    cluster: v.EcsName = of(..., "its name")
    service: v.EcsName = of(..., "its name")
    container: v.EcsName = of(..., "its name")
    variable: v.VariableName = of(..., "its name")
    place: PlaceParameters = of(PlaceParameters(), "where in its text the queue is named")
    role_arns: tuple[v.RoleArn, ...] = of(
        (),
        "the task role and the execution role, with which new revisions of the task definition are registered",
        max_length=ROLES_MOST,
    )


class KubernetesParameters(Model):
    """Variables of a workload of a cluster of EKS, or a file of one of its volumes."""

    type: Literal["kubernetes"]
    cluster: v.ClusterName = of(..., "its name")
    namespace: v.NamespaceName = of(..., "the workload's")
    kind: Literal["Deployment", "StatefulSet", "Rollout"] = of(..., "the last one is Argo's")
    name: v.ObjectName = of(..., "its name")
    containers: tuple[v.NamespaceName, ...] = of((), "their names; none means all", max_length=MAX_CONTAINERS)
    env: v.VariableName | None = of(None, "the name of a variable")
    env_like: v.Pattern | None = of(None, "a regular expression, for whole names of variables")
    fallback: str | None = of(None, "what `env` is where nothing sets it that can be read", max_length=2_048)
    volume: v.NamespaceName | None = of(None, "the name of a volume of a ConfigMap")
    file: v.ObjectName | None = of(None, "its key in the ConfigMap")
    place: PlaceParameters = of(PlaceParameters(), "where in the text the queue is named")
    timeout_s: int = of(600, "how long a rollout may take", ge=1, le=MAX_TIMEOUT_S)
    argo_cd_namespace: v.NamespaceName = of("argocd", "where Argo CD's Applications are")
    agent: bool = of(False, "`sluice split agent` changes it, where Lambda can't reach the cluster")


def _target_of(consumer: Model) -> Target:
    fields = consumer.model_dump(exclude={"role_arns"})
    return convert(fields, cast("type[Target]", Target), of="consumer")


ConsumerParameters: TypeAlias = Annotated[
    LambdaTriggerParameters
    | LambdaVariableParameters
    | SystemsManagerParameters
    | EcsVariableParameters
    | KubernetesParameters,
    Field(discriminator="type"),
    v.checked(_target_of),
]


def targets_of(consumers: Sequence[ConsumerParameters]) -> tuple[Target, ...]:
    """Translate to what functions know."""
    return tuple(_target_of(each) for each in consumers)
