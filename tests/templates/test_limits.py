"""What AWS takes no more of, measured as it would be deployed: with names as long as CloudFormation gives them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from sluice.aws_rules import find_mapping_fault
from tests.templates.assembly import Assembly, Resource
from tests.templates.conftest import Assemblies
from tests.templates.parameter_sets import DEFAULTS, MANY, MAXIMUM, SETS, ParameterSet

ENVIRONMENT_BYTES = 4_096  # https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
# https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html: a standard one.
PARAMETER_BYTES = 4_096
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html: white space doesn't count.
ROLE_CHARACTERS, USER_CHARACTERS, TRUST_CHARACTERS = 10_240, 2_048, 2_048
POLICY_CHARACTERS, POLICIES_MOST = 6_144, 10  # of a policy beside the role's own, and of those at a role
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutCompositeAlarm.html
RULE_CHARACTERS = 10_240
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-policies.html
QUEUE_POLICY: Mapping[str, int] = {"bytes": 8_192, "conditions": 10, "principals": 50, "statements": 20}
ENDPOINT_CHARACTERS = 20_480  # https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-limits-endpoints.html


BOOTSTRAP = "BootstrapVersion"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def name_of(resource: Resource) -> str:
    """The construct's id: the logical one without its hash."""
    return resource.id[:-8]


def environments(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for function in assembly.resources("AWS::Lambda::Function"):
        variables = assembly.plain(function.stack, function.properties["Environment"]["Variables"])
        size = sum(len(f"{name}{value}".encode()) for name, value in variables.items())
        yield f"environment of {name_of(function)}", size, ENVIRONMENT_BYTES


def parameters(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for parameter in assembly.resources("AWS::SSM::Parameter"):
        value = assembly.plain(parameter.stack, parameter.properties["Value"])
        yield f"value of {parameter.id}", len(value.encode()), PARAMETER_BYTES


def policies(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for role in assembly.resources("AWS::IAM::Role"):
        written = [assembly.plain(role.stack, each["PolicyDocument"]) for each in role.properties["Policies"]]
        yield f"policies of {name_of(role)}", sum(map(len, map(compact, written))), ROLE_CHARACTERS
        trusted = assembly.plain(role.stack, role.properties["AssumeRolePolicyDocument"])
        yield f"trust of {name_of(role)}", len(compact(trusted)), TRUST_CHARACTERS
        yield f"number of policies of {name_of(role)}", len(role.properties.get("ManagedPolicyArns", ())), POLICIES_MOST
    for policy in assembly.resources("AWS::IAM::ManagedPolicy"):
        size = len(compact(assembly.plain(policy.stack, policy.properties["PolicyDocument"])))
        yield f"policy {policy.id}", size, POLICY_CHARACTERS
    for policy in assembly.resources("AWS::IAM::Policy"):
        assert "Roles" not in policy.properties
        size = len(compact(assembly.plain(policy.stack, policy.properties["PolicyDocument"])))
        yield f"policy {name_of(policy)}", size, USER_CHARACTERS


def queue_policies(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for policy in assembly.resources("AWS::SQS::QueuePolicy"):
        document = assembly.plain(policy.stack, policy.properties["PolicyDocument"])
        statements = document["Statement"]
        principals = [each for one in statements for each in listed(one["Principal"]["AWS"])]
        conditions = [key for one in statements for keys in one.get("Condition", {}).values() for key in keys]
        sizes = {
            "bytes": len(compact(document).encode()),
            "conditions": len(conditions),
            "principals": len(principals),
            "statements": len(statements),
        }
        for what, size in sizes.items():
            yield f"{what} of {name_of(policy)}", size, QUEUE_POLICY[what]


def endpoint_policies(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for endpoint in assembly.resources("AWS::EC2::VPCEndpoint"):
        if "PolicyDocument" in endpoint.properties:
            document = assembly.plain(endpoint.stack, endpoint.properties["PolicyDocument"])
            yield f"policy of {endpoint.id}", len(compact(document)), ENDPOINT_CHARACTERS


def rules(assembly: Assembly) -> Iterator[tuple[str, int, int]]:
    for alarm in assembly.resources("AWS::CloudWatch::CompositeAlarm"):
        rule = assembly.plain(alarm.stack, alarm.properties["AlarmRule"])
        yield f"rule of {name_of(alarm)}", len(rule), RULE_CHARACTERS


def measured(assembly: Assembly) -> Mapping[str, tuple[int, int]]:
    """The size and its limit, by what it is of."""
    every = [
        *environments(assembly),
        *parameters(assembly),
        *policies(assembly),
        *queue_policies(assembly),
        *endpoint_policies(assembly),
        *rules(assembly),
    ]
    return {name: (size, limit) for name, size, limit in every}


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_nothing_is_larger_than_aws_takes_it(assemblies: Assemblies, given: ParameterSet) -> None:
    sizes = measured(assemblies(given)).items()
    assert {name: (size, most) for name, (size, most) in sizes if size > most} == {}


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_event_source_mappings_have_properties_that_fit_together(assemblies: Assemblies, given: ParameterSet) -> None:
    assembly = assemblies(given)
    mappings = [
        (name_of(resource), assembly.plain(resource.stack, resource.properties["EventSourceArn"]), resource.properties)
        for resource in assembly.resources("AWS::Lambda::EventSourceMapping")
    ]
    faults = {
        name: find_mapping_fault(each, fifo=arn.endswith(".fifo")) for name, arn, each in mappings if ":sqs:" in arn
    }
    assert faults
    assert {name: fault for name, fault in faults.items() if fault is not None} == {}


def look_ups(assembly: Assembly) -> Mapping[str, int]:
    """How many values CloudFormation asks for to deploy each stack, besides the version that CDK looks at."""
    read = {
        stack: [name for name, each in template["Parameters"].items() if "SSM" in each["Type"] and name != BOOTSTRAP]
        for stack, template in assembly.stacks.items()
    }
    return {stack: len(names) for stack, names in read.items() if names}


def test_each_stack_reads_one_document_of_the_stack_of_state(assemblies: Assemblies) -> None:
    readers = ("Federation", "Operations", "Pipeline", "Rendezvous", "Splitting")
    assert look_ups(assemblies(DEFAULTS)) == {f"Sluice{name}": 1 for name in readers}


@pytest.mark.parametrize("given", SETS, ids=lambda given: given.name)
def test_look_ups_are_a_handful(assemblies: Assemblies, given: ParameterSet) -> None:
    """However much a site has: names in templates that AWS would ask for one by one are none."""
    assembly = assemblies(given)
    assert max(look_ups(assembly).values()) <= 10
    assert not re.search(r"Fn::GetStackOutput|Fn::ImportValue|\{\{resolve:", json.dumps(assembly.stacks))


def test_roles_that_name_much_have_policies_beside_their_own(assemblies: Assemblies) -> None:
    """And only those: a role's own policy is there as soon as the role is."""
    assert not list(assemblies(DEFAULTS).resources("AWS::IAM::ManagedPolicy"))
    splitters = [
        resource for resource in assemblies(MAXIMUM).resources("AWS::IAM::Role") if name_of(resource) == "SplitterRole"
    ]
    assert [bool(splitter.properties["ManagedPolicyArns"]) for splitter in splitters] == [True]


def test_functions_roles_queues_and_endpoints_are_all_measured(assemblies: Assemblies) -> None:
    assembly = assemblies(DEFAULTS)
    kinds = (
        "AWS::Lambda::Function",
        "AWS::SSM::Parameter",
        "AWS::IAM::Role",
        "AWS::IAM::Policy",
        "AWS::SQS::QueuePolicy",
        "AWS::EC2::VPCEndpoint",
    )
    functions, stored, roles, others, queues, endpoints = (len(list(assembly.resources(kind))) for kind in kinds)
    assert len(measured(assembly)) == functions + stored + 3 * roles + others + 4 * queues + endpoints


def test_composite_alarms_are_measured(assemblies: Assemblies) -> None:
    assert {name for name in measured(assemblies(MANY)) if name.startswith("rule of ")} == {
        f"rule of {name}Outage" for name in ("Rendezvous", "Splitting", "Federation", "Pipeline")
    }
