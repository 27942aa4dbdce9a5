"""Roles of what runs: what they may is written into the role as far as that has room, and into policies beside it.

Quotas: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from sluice.errors import BadParameter

INLINE_CHARACTERS, POLICY_CHARACTERS, POLICIES_MOST = 10_240, 6_144, 10
FRAME_CHARACTERS = 60  # of a document, around its statements
STATEMENT_CHARACTERS = 5_000  # longer lists of resources are cut
PSEUDO_PARAMETERS = {"AWS::Partition": 10, "AWS::Region": 15, "AWS::AccountId": 12}  # characters, of the longest
OTHER_CHARACTERS = 135  # of an ARN of ours, which a deployment puts in an expression's place


def role(
    scope: Construct,
    id_: str,
    *,
    assumed_by: iam.IPrincipal,
    allowed: Sequence[iam.PolicyStatement],
    description: str | None = None,
) -> iam.Role:
    """Make a role that may do what these statements allow. Raises `BadParameter` where no role has room for them."""
    inline, *managed = _documents(Stack.of(scope), id_, allowed)
    made = iam.Role(
        scope,
        id_,
        description=description,
        assumed_by=assumed_by,
        inline_policies={"Allowed": iam.PolicyDocument(statements=inline)},
    )
    for place, statements in enumerate(managed):
        made.add_managed_policy(iam.ManagedPolicy(made, f"Allowed{place}", statements=statements))
    return made


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
