"""What the control function may do where consumers are re-pointed: as little as IAM can say.

Which actions take which resources and conditions: https://docs.aws.amazon.com/service-authorization/latest/reference/
"""

from collections.abc import Iterable, Iterator, Sequence

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_lambda as lambda_

from sluice.constructs.roles import CONDITION, NO_RESOURCE, Statement, allow, event_source_mappings, pass_role
from sluice.parameters.consumers import (
    ConsumerParameters,
    EcsVariableParameters,
    KubernetesParameters,
    LambdaTriggerParameters,
    LambdaVariableParameters,
    SystemsManagerParameters,
)

REVISIONS = "A revision's number is known once it is registered; the roles that it may have are named."
PARTS = 7  # of a function's ARN without an alias
TASKS = "Tasks have ids of their own; the wildcard stands after their cluster."


def statements(
    stack: Stack, consumers: Sequence[ConsumerParameters], triggers: Sequence[lambda_.EventSourceMapping]
) -> Iterator[Statement]:
    """Allow to re-point these consumers, and to switch on and off these triggers, which are the splitter's."""
    arns = [_arn(stack, "lambda:event-source-mapping", each.event_source_mapping_id) for each in triggers]
    if arns:
        yield allow("lambda", ["GetEventSourceMapping", "UpdateEventSourceMapping"], *arns)
    if mapped := [each.function for each in consumers if isinstance(each, LambdaTriggerParameters)]:
        yield from event_source_mappings(_once(arn for each in mapped for arn in _function_arns(stack, each)))
    if functions := [each.function for each in consumers if isinstance(each, LambdaVariableParameters)]:
        actions = ["GetFunctionConfiguration", "UpdateFunctionConfiguration"]
        yield allow("lambda", actions, *_once(_arn(stack, "lambda:function", each) for each in functions))
    if names := [each.name for each in consumers if isinstance(each, SystemsManagerParameters)]:
        yield allow(
            "ssm",
            ["GetParameter", "PutParameter"],
            *_once(_arn(stack, "ssm:parameter", each.removeprefix("/")) for each in names),
        )
        yield allow("ssm", ["DescribeParameters"], "*", wildcards=NO_RESOURCE)
    if services := [each for each in consumers if isinstance(each, EcsVariableParameters)]:
        yield from _of_services(stack, services)
    if clusters := [each.cluster for each in consumers if isinstance(each, KubernetesParameters) and not each.agent]:
        # What is done in a cluster, its own Roles allow.
        yield allow("eks", ["DescribeCluster"], *_once(_arn(stack, "eks:cluster", each) for each in clusters))


def _of_services(stack: Stack, services: Sequence[EcsVariableParameters]) -> Iterator[Statement]:
    clusters = _once(each.cluster for each in services)
    roles = _once(role for each in services for role in each.role_arns)
    revisions = _arn(stack, "ecs:task-definition", "*:*")
    of_services = _once(_arn(stack, "ecs:service", f"{each.cluster}/{each.service}") for each in services)
    yield allow("ecs", ["DescribeServices", "UpdateService"], *of_services)
    tasks = [_arn(stack, "ecs:task", f"{each}/*") for each in clusters]
    yield allow("ecs", ["DescribeTasks"], *tasks, wildcards=TASKS)
    in_clusters = {"ArnEquals": {"ecs:cluster": [_arn(stack, "ecs:cluster", each) for each in clusters]}}
    # Of container instances, whichever these are.
    yield allow("ecs", ["ListTasks"], "*", conditions=in_clusters, wildcards=CONDITION)
    yield allow("ecs", ["DescribeTaskDefinition", "DeregisterTaskDefinition"], "*", wildcards=NO_RESOURCE)
    yield allow("ecs", ["RegisterTaskDefinition"], revisions, wildcards=REVISIONS)
    registered = {"StringEquals": {"ecs:CreateAction": "RegisterTaskDefinition"}}
    yield allow("ecs", ["TagResource"], revisions, conditions=registered, wildcards=REVISIONS)
    if roles:
        yield pass_role("ecs-tasks", *roles)


def _function_arns(stack: Stack, function: str) -> Iterator[str]:
    """Yield a function's ARN, and with an alias that too: which of them is in the condition's key, AWS doesn't say."""
    arn = _arn(stack, "lambda:function", function)
    yield ":".join(arn.split(":")[:PARTS])
    yield arn


def _arn(stack: Stack, kind: str, name: str) -> str:
    """Name a resource by its ARN, of the stack's account and region where it isn't one already."""
    if name.startswith("arn:"):
        return name
    service, resource = kind.split(":")
    arn_format = ArnFormat.COLON_RESOURCE_NAME if service == "lambda" else ArnFormat.SLASH_RESOURCE_NAME
    return stack.format_arn(service=service, resource=resource, resource_name=name, arn_format=arn_format)


def _once(arns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(arns))
