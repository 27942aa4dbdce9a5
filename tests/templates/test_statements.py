"""Every statement of every policy: actions, condition keys and resources that there are, and that go together."""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.operator.permissions import EXECUTION_ROLE, build_policy
from tests.templates.assembly import Assembly
from tests.templates.conftest import Assemblies
from tests.templates.iam_reference import EXCEPTIONS, Statement, faults
from tests.templates.parameter_sets import DEFAULTS, SETS, ParameterSet

OF_SERVICE = {"EMRServerless": "emr-serverless"}  # in a resource's type, and in an action
QUEUE, TABLE = "arn:aws:sqs:eu-central-1:123456789012:q", "arn:aws:dynamodb:eu-central-1:123456789012:table/t"
OBJECT, BUCKET = "arn:aws:s3:::b/*", "arn:aws:s3:::b"
LOGS = "arn:aws:logs:eu-central-1:123456789012:log-group:g:*"


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def found(node: Any) -> Iterator[Any]:
    """What is a statement anywhere in a resource."""
    if isinstance(node, dict) and {"Effect", "Action"} <= node.keys():
        yield node
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from found(each)


def statements(assembly: Assembly) -> Iterator[tuple[str, Statement]]:
    """With the resource that each stands in."""
    for resource in assembly.resources():
        for each in found(resource.properties):
            assert {"NotAction", "NotResource"}.isdisjoint(each)
            keys = [key for conditions in each.get("Condition", {}).values() for key in conditions]
            resources = [assembly.text(resource.stack, on) for on in listed(each.get("Resource", []))]
            yield resource.id, Statement(actions=listed(each["Action"]), resources=resources, keys=keys)
        if resource.type == "AWS::Lambda::Permission":
            yield resource.id, Statement(actions=[resource.properties["Action"]])


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_iam_knows_what_every_statement_says(assemblies: Assemblies, given: ParameterSet) -> None:
    every = list(statements(assemblies(given)))
    assert len(every) > 30
    assert [f"{id_}: {fault}" for id_, each in every for fault in faults(each)] == []


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_the_execution_role_may_make_every_resource(assemblies: Assemblies, given: ParameterSet) -> None:
    role = build_policy([EXECUTION_ROLE], partition="aws", region="eu-central-1", account="123456789012", stage=None)
    services = {action.partition(":")[0] for each in role["Statement"] for action in each["Action"]}
    types = {resource.type for resource in assemblies(given).resources()} - {"AWS::CDK::Metadata"}
    needed = {OF_SERVICE.get(service := type_.split("::")[1], service.lower()) for type_ in types}
    assert needed - services == set()


def test_every_exception_is_of_a_statement_that_is_there(assemblies: Assemblies) -> None:
    every = [each for _, each in statements(assemblies(DEFAULTS))]
    for action, resource in EXCEPTIONS:
        assert any(action in each.actions and resource in each.resources for each in every)


@pytest.mark.parametrize(
    "statement",
    [
        Statement(actions=["sqs:SendMessage", "sqs:DeleteMessage"], resources=[QUEUE]),
        Statement(actions=["sqs:SendMessage"], resources=["arn:aws:sqs:*:123456789012:SluiceState-*"]),
        Statement(actions=["sqs:*"], resources=[QUEUE], keys=["aws:SecureTransport"]),
        Statement(actions=["sqs:ListQueues"], resources=["*"]),
        Statement(actions=["s3:GetObject", "s3:ListBucket"], resources=[BUCKET, OBJECT]),
        Statement(actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[LOGS]),
        Statement(actions=["lambda:CreateEventSourceMapping"], resources=["*"], keys=["lambda:FunctionArn"]),
        Statement(actions=["sqs:CreateQueue"], resources=[QUEUE], keys=["aws:RequestTag/owner"]),
        Statement(actions=["sts:AssumeRole"], keys=["sts:ExternalId"]),
        Statement(actions=["ssm:GetParameter"], resources=["arn:aws:ssm:eu-central-1:123456789012:parameter/a/b"]),
    ],
)
def test_nothing_is_found_in_a_statement_that_is_right(statement: Statement) -> None:
    assert list(faults(statement)) == []


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        (Statement(actions=["sqs:SendMessages"], resources=[QUEUE]), "no such action"),
        (Statement(actions=["sqs:SendMessageBatch"], resources=[QUEUE]), "no such action"),
        (Statement(actions=["sqs:sendMessage"], resources=[QUEUE]), "no such action"),
        (Statement(actions=["queues:SendMessage"], resources=[QUEUE]), "no such action"),
        (Statement(actions=["s3:HeadObject"], resources=[OBJECT]), "no such action"),
        (Statement(actions=["sqs:SendMessage"], resources=[TABLE]), "not ['arn:aws:dynamodb"),
        (Statement(actions=["dynamodb:GetItem"], resources=[TABLE, QUEUE]), "q: none of"),
        (Statement(actions=["s3:GetObject"], resources=[BUCKET]), "s3:GetObject: takes"),
        (Statement(actions=["s3:ListBucket"], resources=[OBJECT]), "s3:ListBucket: takes"),
        (Statement(actions=["s3:GetObject", "s3:ListBucket"], resources=[OBJECT]), "s3:ListBucket: takes"),
        (Statement(actions=["sqs:ListQueues"], resources=[QUEUE]), "takes no resource"),
        (
            Statement(actions=["lambda:ListEventSourceMappings"], resources=["*"], keys=["lambda:FunctionArn"]),
            "no condition",
        ),
        (Statement(actions=["sqs:SendMessage"], resources=[QUEUE], keys=["aws:SourceARN"]), "no condition key"),
        (Statement(actions=["sqs:*"], resources=[QUEUE], keys=["sqs:QueueName"]), "no condition key"),
        (
            Statement(
                actions=["emr-serverless:StartJobRun"],
                resources=["arn:aws:emr-serverless:eu-central-1:123456789012:applications/a"],
            ),
            "takes",
        ),
    ],
)
def test_what_is_wrong_with_a_statement_is_said(statement: Statement, fault: str) -> None:
    assert any(fault in said for said in faults(statement))
