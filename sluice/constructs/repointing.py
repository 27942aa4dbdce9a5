"""Grants the control function only the permissions that it needs to re-point consumers.

Resources and conditions of each action: https://docs.aws.amazon.com/service-authorization/latest/reference/
"""

from collections.abc import Iterable, Iterator, Sequence

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_lambda as lambda_

from sluice.constructs.roles import CONDITION, NO_RESOURCE, Statement, allow, allow_event_source_mappings, pass_role
from sluice.parameters.consumers import (
    ConsumerParameters,
    EcsVariableParameters,
    KubernetesParameters,
    LambdaTriggerParameters,
    LambdaVariableParameters,
    SystemsManagerParameters,
)

REVISIONS = "A revision's number is known once it is registered; the roles that it may have are named."
ROLES = "A function's role is known once the function is read."
PARTS = 7  # An unaliased function ARN has this many parts.
TASKS = "Tasks have ids of their own; the wildcard follows their cluster."


def list_statements(
    stack: Stack, consumers: Sequence[ConsumerParameters], triggers: Sequence[lambda_.EventSourceMapping]
) -> Iterator[Statement]:
    """Allow re-pointing these consumers, and enabling and disabling these triggers of the splitter function."""
    arns = [_format_arn(stack, "lambda:event-source-mapping", trigger.event_source_mapping_id) for trigger in triggers]
    if arns:
        yield allow("lambda", ["GetEventSourceMapping", "UpdateEventSourceMapping"], *arns)
    if mapped := [consumer.function for consumer in consumers if isinstance(consumer, LambdaTriggerParameters)]:
        yield from allow_event_source_mappings(
            _deduplicate(arn for function in mapped for arn in _format_function_arns(stack, function))
        )
    if functions := [consumer.function for consumer in consumers if isinstance(consumer, LambdaVariableParameters)]:
        actions = ["GetFunctionConfiguration", "UpdateFunctionConfiguration"]
        yield allow(
            "lambda", actions, *_deduplicate(_format_arn(stack, "lambda:function", function) for function in functions)
        )
    roles = [role for consumer in consumers for role in getattr(consumer, "role_arns", ())]
    roles += [stack.format_arn(service="iam", region="", resource="role", resource_name="*")] if functions else []
    if roles:
        yield allow("iam", ["SimulatePrincipalPolicy"], *_deduplicate(roles), wildcards=ROLES)
    if names := [consumer.name for consumer in consumers if isinstance(consumer, SystemsManagerParameters)]:
        yield allow(
            "ssm",
            ["GetParameter", "PutParameter"],
            *_deduplicate(_format_arn(stack, "ssm:parameter", name.removeprefix("/")) for name in names),
        )
        yield allow("ssm", ["DescribeParameters"], "*", wildcards=NO_RESOURCE)
    if services := [consumer for consumer in consumers if isinstance(consumer, EcsVariableParameters)]:
        yield from _list_service_statements(stack, services)
    if clusters := [
        consumer.cluster for consumer in consumers if isinstance(consumer, KubernetesParameters) and not consumer.agent
    ]:
        # Inside a cluster, Kubernetes Roles grant the permissions.
        yield allow(
            "eks",
            ["DescribeCluster"],
            *_deduplicate(_format_arn(stack, "eks:cluster", cluster) for cluster in clusters),
        )


def _list_service_statements(stack: Stack, services: Sequence[EcsVariableParameters]) -> Iterator[Statement]:
    clusters = _deduplicate(service.cluster for service in services)
    roles = _deduplicate(role for service in services for role in service.role_arns)
    revisions = _format_arn(stack, "ecs:task-definition", "*:*")
    of_services = _deduplicate(
        _format_arn(stack, "ecs:service", f"{service.cluster}/{service.service}") for service in services
    )
    yield allow("ecs", ["DescribeServices", "UpdateService"], *of_services)
    tasks = [_format_arn(stack, "ecs:task", f"{cluster}/*") for cluster in clusters]
    yield allow("ecs", ["DescribeTasks"], *tasks, wildcards=TASKS)
    in_clusters = {"ArnEquals": {"ecs:cluster": [_format_arn(stack, "ecs:cluster", cluster) for cluster in clusters]}}
    # The resources of this ECS action are container instances, whose ARNs are unknown.
    yield allow("ecs", ["ListTasks"], "*", conditions=in_clusters, wildcards=CONDITION)
    yield allow("ecs", ["DescribeTaskDefinition", "DeregisterTaskDefinition"], "*", wildcards=NO_RESOURCE)
    yield allow("ecs", ["RegisterTaskDefinition"], revisions, wildcards=REVISIONS)
    registered = {"StringEquals": {"ecs:CreateAction": "RegisterTaskDefinition"}}
    yield allow("ecs", ["TagResource"], revisions, conditions=registered, wildcards=REVISIONS)
    if roles:
        yield pass_role("ecs-tasks", *roles)


def _format_function_arns(stack: Stack, function: str) -> Iterator[str]:
    """Yield a function's ARN without and with its alias: AWS doesn't document which of them the condition key has."""
    arn = _format_arn(stack, "lambda:function", function)
    yield ":".join(arn.split(":")[:PARTS])
    yield arn


def _format_arn(stack: Stack, kind: str, name: str) -> str:
    """Return a resource's ARN. `name` may be an ARN already, or a name in the stack's account and region."""
    if name.startswith("arn:"):
        return name
    service, resource = kind.split(":")
    arn_format = ArnFormat.COLON_RESOURCE_NAME if service == "lambda" else ArnFormat.SLASH_RESOURCE_NAME
    return stack.format_arn(service=service, resource=resource, resource_name=name, arn_format=arn_format)


def _deduplicate(arns: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(arns))
