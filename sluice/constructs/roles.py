"""Roles of what runs: what they may is written into the role as far as that has room, and into policies beside it.

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
FRAME_CHARACTERS = 60  # of a document, around its statements
STATEMENT_CHARACTERS = 5_000  # longer lists of resources are cut
PSEUDO_PARAMETERS = {"AWS::Partition": 10, "AWS::Region": 15, "AWS::AccountId": 12}  # characters, of the longest
OTHER_CHARACTERS = 135  # of an ARN of ours, which a deployment puts in an expression's place
NO_RESOURCE = "The action takes no resource."
CONDITION = "The condition names the function or the cluster."
NO_CONDITIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a role or a user may do. `wildcards` says why resources have wildcards, which a synth's checks ask for."""

    actions: Sequence[str]
    resources: Sequence[str]
    conditions: Mapping[str, Any]
    wildcards: str

    def for_policy(self) -> iam.PolicyStatement:
        """Return the statement as policies have it."""
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
    """Make a statement of one service's actions."""
    named = [f"{service}:{action}" for action in actions]
    return Statement(actions=named, resources=resources, conditions=conditions, wildcards=wildcards)


def event_source_mappings(function_arns: Sequence[str]) -> Iterator[Statement]:
    """Allow to make, change and delete event source mappings of these functions, and to list all mappings."""
    actions = [f"{action}EventSourceMapping" for action in ("Create", "Update", "Delete", "Get")]
    of_functions = {"ArnLike": {"lambda:FunctionArn": list(function_arns)}}
    yield allow("lambda", actions, "*", conditions=of_functions, wildcards=CONDITION)
    # It takes neither a resource nor that condition.
    yield allow("lambda", ["ListEventSourceMappings"], "*", wildcards=NO_RESOURCE)


def pass_role(service: str, *role_arns: str) -> Statement:
    """Allow to hand roles to one service."""
    to_service = {"StringEquals": {"iam:PassedToService": f"{service}.amazonaws.com"}}
    return allow("iam", ["PassRole"], *role_arns, conditions=to_service)


def role(
    scope: Construct,
    id_: str,
    *,
    assumed_by: iam.IPrincipal,
    allowed: Sequence[Statement],
    description: str | None = None,
    name: str | None = None,
) -> iam.Role:
    """Make a role that may do what these statements allow. Raises `BadParameter` where no role has room for them."""
    inline, *managed = _documents(Stack.of(scope), id_, [statement.for_policy() for statement in allowed])
    made = iam.Role(
        scope,
        id_,
        description=description,
        role_name=name,
        assumed_by=assumed_by,
        inline_policies={"Allowed": iam.PolicyDocument(statements=inline)},
    )
    for place, statements in enumerate(managed):
        made.add_managed_policy(iam.ManagedPolicy(made, f"Allowed{place}", statements=statements))
    acknowledge_wildcards(made, allowed)
    return made


def acknowledge_wildcards(construct: Construct, allowed: Sequence[Statement]) -> None:
    """Acknowledge the wildcards of the statements that say why they have them."""
    stack = Stack.of(construct)
    reasons = {
        resource: statement.wildcards
        for statement in allowed
        for resource in statement.resources
        if statement.wildcards and "*" in resource
    }
    for resource, reason in reasons.items():
        acknowledge(construct, f"AwsSolutions-IAM5[Resource::{_shown(stack.resolve(resource))}]", reason)


def acknowledge(construct: Construct, rule: str, reason: str) -> None:
    """Let one finding of cdk-nag stand on one construct."""
    Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))


def _shown(resolved: Any) -> str:
    """Give an ARN's expression as cdk-nag shows it."""
    match resolved:
        case str():
            return resolved
        case {"Fn::Join": [str(delimiter), parts]}:
            return delimiter.join(map(_shown, parts))
        case {"Fn::GetAtt": [id_, attribute]}:
            return f"<{id_}.{attribute}>"
        case {"Ref": name}:
            return f"<{name}>"
    return json.dumps(resolved, separators=(",", ":"))


def _documents(stack: Stack, id_: str, allowed: Sequence[iam.PolicyStatement]) -> list[list[iam.PolicyStatement]]:
    """Share statements out among the role's own policy, which comes first, and others."""
    rooms, documents = [INLINE_CHARACTERS - FRAME_CHARACTERS], list[list[iam.PolicyStatement]]([[]])
    if sum(_size(stack, each) for each in allowed) <= rooms[0]:
        return [list(allowed)]
    for statement in (part for each in allowed for part in _parts(stack, each)):
        size = _size(stack, statement)
        place = next((place for place, room in enumerate(rooms) if size <= room), len(rooms))
        if place == len(rooms):
            rooms.append(POLICY_CHARACTERS - FRAME_CHARACTERS)
            documents.append([])
        rooms[place] -= size
        documents[place].append(statement)
    if len(documents) > 1 + POLICIES_MOST:
        raise BadParameter(
            "sluice", f"what {id_} may name of queues, keys, buckets and accounts fills no role's policies"
        )
    return documents


def _parts(stack: Stack, statement: iam.PolicyStatement) -> Iterator[iam.PolicyStatement]:
    """Cut a statement of many resources into several."""
    halves = [statement.resources]
    while halves:
        resources = halves.pop(0)
        part = statement.copy(resources=resources)
        if len(resources) > 1 and _size(stack, part) > STATEMENT_CHARACTERS:
            middle = len(resources) // 2
            halves[:0] = [resources[:middle], resources[middle:]]
        else:
            yield part


def _size(stack: Stack, statement: iam.PolicyStatement) -> int:
    """Say how many characters a statement has once it is deployed, or a few more."""
    return _characters(stack.resolve(statement.to_statement_json())) + 1


def _characters(value: Any) -> int:
    match value:
        case {"Fn::Join": [_, parts]}:
            return sum(_characters(part) - 2 if isinstance(part, str) else _characters(part) for part in parts) + 2
        case {"Ref": str(name)}:
            return PSEUDO_PARAMETERS.get(name, OTHER_CHARACTERS)
        case dict() if any(key.startswith("Fn::") for key in value):
            return OTHER_CHARACTERS
        case dict():
            return 2 + sum(_characters(key) + _characters(each) + 2 for key, each in value.items())
        case list():
            return 2 + sum(_characters(each) + 1 for each in value)
    return len(json.dumps(value))
