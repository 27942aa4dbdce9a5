"""What a role may is shared out among policies: nothing is lost, and what no role can hold is said at the synth."""

import json
from typing import Any

import pytest
from aws_cdk import App, Stack
from aws_cdk import aws_iam as iam
from aws_cdk.assertions import Template

from sluice.constructs import roles
from sluice.constructs.functions import format_queue_arn
from sluice.constructs.roles import Statement, allow
from sluice.errors import BadParameter


def made(*allowed: Statement) -> list[Any]:
    """The documents of a role that may this, its own first."""
    stack = Stack(App(), "Stack")
    roles.create_role(stack, "Reader", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"), allowed=allowed)
    template = Template.from_stack(stack)
    (role,) = template.find_resources("AWS::IAM::Role").values()
    policies = template.find_resources("AWS::IAM::ManagedPolicy")
    assert [arn["Ref"] for arn in role["Properties"].get("ManagedPolicyArns", [])] == list(policies)
    return [
        *(policy["PolicyDocument"] for policy in role["Properties"]["Policies"]),
        *(policy["Properties"]["PolicyDocument"] for policy in policies.values()),
    ]


def arns(number: int) -> list[str]:
    return [f"arn:aws:kms:eu-central-1:123456789012:key/{place:036}" for place in range(number)]


def test_what_has_room_is_in_the_roles_own_policy() -> None:
    (document,) = made(allow("kms", ["Decrypt"], *arns(100)))
    assert [each["Resource"] for each in document["Statement"]] == [arns(100)]


def test_what_has_none_is_in_policies_beside_it_whole() -> None:
    documents = made(allow("kms", ["Decrypt"], *arns(300)), allow("sqs", ["SendMessage"], "arn:aws:sqs:::last"))
    assert len(documents) > 1
    assert max(len(json.dumps(each, separators=(",", ":"))) for each in documents[1:]) <= 6_144
    statements = [each for document in documents for each in document["Statement"]]
    named = [
        resource
        for statement in statements
        if statement["Action"] == "kms:Decrypt"
        for resource in statement["Resource"]
    ]
    assert sorted(named) == arns(300)
    assert [statement["Resource"] for statement in statements if statement["Action"] == "sqs:SendMessage"] == [
        "arn:aws:sqs:::last"
    ]


def test_conditions_stay_with_each_part() -> None:
    conditions = {"StringEquals": {"aws:SourceAccount": "123456789012"}}
    statement = allow("kms", ["Decrypt"], *arns(300), conditions=conditions)
    statements = [each for document in made(statement) for each in document["Statement"]]
    assert len(statements) > 1
    assert {json.dumps(each["Condition"]) for each in statements} == {
        '{"StringEquals": {"aws:SourceAccount": "123456789012"}}'
    }


def test_what_no_role_has_room_for_is_refused() -> None:
    with pytest.raises(BadParameter, match="Reader refers to more queues"):
        made(allow("kms", ["Decrypt"], *arns(2_000)))


def test_names_that_a_deployment_knows_are_counted_as_long_as_they_get() -> None:
    stack = Stack(App(), "Stack")
    queues = [format_queue_arn(stack, f"{place:080}") for place in range(200)]
    first, *others = made(allow("sqs", ["SendMessage"], *queues))
    assert others
    longest = len("arn:aws-us-gov:sqs:ap-southeast-1:123456789012:,") + 80
    for document, most in [(first, 10_240), *((other, 6_144) for other in others)]:
        assert sum(len(each["Resource"]) for each in document["Statement"]) * longest < most
