"""Creates roles. An inline policy has as many statements as fit; managed policies have the rest.

Quotas: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_iam as iam
from constructs import Construct

from sluice.errors import BadParameter

INLINE_CHARACTERS, POLICY_CHARACTERS, POLICIES_MOST = 10_240, 6_144, 10
FRAME_CHARACTERS = 60  # The unit is characters of a policy document without its statements.
STATEMENT_CHARACTERS = 5_000  # A larger statement is split by its resources.
PSEUDO_PARAMETERS = {"AWS::Partition": 10, "AWS::Region": 15, "AWS::AccountId": 12}  # Greatest length of each value.
OTHER_CHARACTERS = 135  # An ARN that replaces any other expression has at most this length.
NO_RESOURCE = "The action takes no resource."
CONDITION = "The condition names the function or the cluster."
NO_CONDITIONS: Mapping[str, Any] = {}
KEY = "sluice:kms-key-arn"  # Under this key, the construct tree's context has the KMS key that roles may use.


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A permission of a role or user. `wildcards` gives the reason for wildcards, which cdk-nag requires."""

    actions: Sequence[str]
    resources: Sequence[str]
    conditions: Mapping[str, Any]
    wildcards: str

    def for_policy(self) -> iam.PolicyStatement:
        """Convert the statement to CDK's type of policy statement."""
        return iam.PolicyStatement(
            actions=list(self.actions), resources=list(self.resources), conditions=self.conditions or None
        )


def allow(
    service: str,
    actions: Sequence[str],
    *resources: str,
    conditions: Mapping[str, Any] = NO_CONDITIONS,
    wildcards: str = "",
) -> Statement:
    """Create a statement that allows actions of one service."""
    named = [f"{service}:{action}" for action in actions]
    return Statement(actions=named, resources=resources, conditions=conditions, wildcards=wildcards)


def allow_event_source_mappings(function_arns: Sequence[str]) -> Iterator[Statement]:
    """Allow creating, changing and deleting event source mappings of these functions, and listing all mappings."""
    actions = [f"{action}EventSourceMapping" for action in ("Create", "Update", "Delete", "Get")]
    of_functions = {"ArnLike": {"lambda:FunctionArn": list(function_arns)}}
    yield allow("lambda", actions, "*", conditions=of_functions, wildcards=CONDITION)
    # Lambda's list action supports neither resources nor a condition on the function.
    yield allow("lambda", ["ListEventSourceMappings"], "*", wildcards=NO_RESOURCE)


def pass_role(service: str, *role_arns: str) -> Statement:
    """Allow passing these roles to one AWS service."""
    to_service = {"StringEquals": {"iam:PassedToService": f"{service}.amazonaws.com"}}
    return allow("iam", ["PassRole"], *role_arns, conditions=to_service)


def create_role(
    scope: Construct,
    id_: str,
    *,
    assumed_by: iam.IPrincipal,
    allowed: Sequence[Statement],
    description: str | None = None,
    name: str | None = None,
) -> iam.Role:
    """Create a role with these statements. Raises `BadParameter` if the statements exceed the quotas of a role."""
    allowed = [*allowed, *allow_site_key(scope)]
    # A site may lack all of a statement's resources, such as bindable queues, and a policy refuses an empty list.
    statements = [statement.for_policy() for statement in allowed if statement.resources]
    inline, *managed = _distribute_statements(Stack.of(scope), id_, statements)
    made = iam.Role(
        scope,
        id_,
        description=description,
        role_name=name,
        assumed_by=assumed_by,
        inline_policies={"Allowed": iam.PolicyDocument(statements=inline)},
    )
    for place, part in enumerate(managed):
        made.add_managed_policy(iam.ManagedPolicy(made, f"Allowed{place}", statements=part))
    suppress_wildcard_findings(made, allowed)
    return made


def allow_site_key(scope: Construct) -> list[Statement]:
    """Allow sending to and reading from all resources that the site's own KMS key encrypts, if it has one."""
    key_arn = scope.node.try_get_context(KEY)
    return [allow("kms", ["Decrypt", "GenerateDataKey"], key_arn)] if key_arn else []


def suppress_wildcard_findings(construct: Construct, allowed: Sequence[Statement]) -> None:
    """Suppress cdk-nag's findings on wildcards in those statements that give a reason for wildcards."""
    stack = Stack.of(construct)
    reasons = {
        resource: statement.wildcards
        for statement in allowed
        for resource in statement.resources
        if statement.wildcards and "*" in resource
    }
    for resource, reason in reasons.items():
        suppress_finding(construct, f"AwsSolutions-IAM5[Resource::{_format_for_nag(stack.resolve(resource))}]", reason)


def suppress_finding(construct: Construct, rule: str, reason: str) -> None:
    """Suppress one cdk-nag finding on one construct, with a reason."""
    Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))


def _format_for_nag(resolved: Any) -> str:
    """Format an ARN's CloudFormation expression as cdk-nag prints it, so that a suppression matches the finding."""
    match resolved:
        case str():
            return resolved
        case {"Fn::Join": [str(delimiter), parts]}:
            return delimiter.join(map(_format_for_nag, parts))
        case {"Fn::GetAtt": [id_, attribute]}:
            return f"<{id_}.{attribute}>"
        case {"Ref": name}:
            return f"<{name}>"
    return json.dumps(resolved, separators=(",", ":"))


def _distribute_statements(
    stack: Stack, id_: str, allowed: Sequence[iam.PolicyStatement]
) -> list[list[iam.PolicyStatement]]:
    """Distribute statements over policies: the role's inline policy is filled first, then managed policies."""
    rooms, documents = [INLINE_CHARACTERS - FRAME_CHARACTERS], list[list[iam.PolicyStatement]]([[]])
    if sum(_estimate_size(stack, statement) for statement in allowed) <= rooms[0]:
        return [list(allowed)]
    for statement in (part for whole in allowed for part in _split_statement(stack, whole)):
        size = _estimate_size(stack, statement)
        place = next((place for place, room in enumerate(rooms) if size <= room), len(rooms))
        if place == len(rooms):
            rooms.append(POLICY_CHARACTERS - FRAME_CHARACTERS)
            documents.append([])
        rooms[place] -= size
        documents[place].append(statement)
    if len(documents) > 1 + POLICIES_MOST:
        raise BadParameter(
            "sluice", f"{id_} refers to more queues, keys, buckets and accounts than fit into a role's policies"
        )
    return documents


def _split_statement(stack: Stack, statement: iam.PolicyStatement) -> Iterator[iam.PolicyStatement]:
    """Split a statement with many resources into several statements."""
    halves = [statement.resources]
    while halves:
        resources = halves.pop(0)
        part = statement.copy(resources=resources)
        if len(resources) > 1 and _estimate_size(stack, part) > STATEMENT_CHARACTERS:
            middle = len(resources) // 2
            halves[:0] = [resources[:middle], resources[middle:]]
        else:
            yield part


def _estimate_size(stack: Stack, statement: iam.PolicyStatement) -> int:
    """Return an upper bound for the length of a statement after deployment, in characters."""
    return _count_characters(stack.resolve(statement.to_statement_json())) + 1


def _count_characters(value: Any) -> int:
    match value:
        case {"Fn::Join": [_, parts]}:
            return (
                sum(_count_characters(part) - 2 if isinstance(part, str) else _count_characters(part) for part in parts)
                + 2
            )
        case {"Ref": str(name)}:
            return PSEUDO_PARAMETERS.get(name, OTHER_CHARACTERS)
        case dict() if any(key.startswith("Fn::") for key in value):
            return OTHER_CHARACTERS
        case dict():
            return 2 + sum(_count_characters(key) + _count_characters(member) + 2 for key, member in value.items())
        case list():
            return 2 + sum(_count_characters(item) + 1 for item in value)
    return len(json.dumps(value))
