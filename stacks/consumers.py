"""Consumers of split queues that are re-pointed, as parameters, and as functions know them. No construct is here.

The kinds and their fields are those of `sluice.splitting.consumers.targets`, which has the last word on their limits.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Field

from sluice.codec import convert
from sluice.splitting.consumers.targets import MAX_STEPS, Target
from stacks import values as v
from stacks.values import Model, of

CONSUMERS_MOST = 10  # of a queue
ROLES_MOST = 10  # of a task definition's revisions


class PlaceParameters(Model):
    """Where in a text the queue is named; the whole text, where neither is given."""

    path: tuple[str, ...] = of((), "keys that lead into JSON, and `[]` for each item of a list", max_length=MAX_STEPS)
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


def _target_of(consumer: Model) -> Target:
    fields = consumer.model_dump(exclude={"role_arns"})
    return convert(fields, cast("type[Target]", Target), of="consumer")


ConsumerParameters: TypeAlias = Annotated[
    LambdaTriggerParameters | LambdaVariableParameters | SystemsManagerParameters | EcsVariableParameters,
    Field(discriminator="type"),
    v.checked(_target_of),
]


def targets_of(consumers: Sequence[ConsumerParameters]) -> tuple[Target, ...]:
    """Translate to what functions know."""
    return tuple(_target_of(each) for each in consumers)
