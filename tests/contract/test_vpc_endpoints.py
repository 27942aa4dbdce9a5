"""The jobs' VPC endpoints, on moto's EC2: created as AWS is asked for them, found by their tag, and deleted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from moto import mock_aws

from sluice.aws.pipeline.endpoints import Ec2Endpoints
from sluice.errors import CallFailed
from sluice.pipeline.endpoints import EndpointSettings, EndpointState

REGION = "eu-central-1"
TIME = datetime(2026, 11, 24, tzinfo=UTC)
ROLE = "arn:aws:iam::123456789012:role/job"


@dataclass
class Network:
    ec2: Any
    settings: EndpointSettings
    endpoints: Ec2Endpoints


@pytest.fixture
def network() -> Iterator[Network]:
    with mock_aws():
        ec2 = boto3.client("ec2", region_name=REGION, aws_access_key_id="t", aws_secret_access_key="t")
        vpc_id = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet_id = ec2.create_subnet(VpcId=vpc_id, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
        group_id = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc_id)["GroupId"]
        settings = EndpointSettings(
            vpc_id=vpc_id,
            subnet_ids=(subnet_id,),
            security_group_id=group_id,
            services=("sqs", "logs"),
            role_arns=(ROLE,),
        )
        yield Network(ec2, settings, Ec2Endpoints(client=ec2, application_id="app"))


def test_an_endpoint_has_the_service_s_usual_name_and_passes_only_the_jobs_calls(network: Network) -> None:
    network.endpoints.create("sqs", network.settings, token="t")
    [made] = network.ec2.describe_vpc_endpoints()["VpcEndpoints"]
    assert (made["VpcEndpointType"], made["PrivateDnsEnabled"]) == ("Interface", True)
    assert made["ServiceName"] == f"com.amazonaws.{REGION}.sqs"
    assert (made["VpcId"], made["SubnetIds"]) == (network.settings.vpc_id, list(network.settings.subnet_ids))
    [statement] = json.loads(made["PolicyDocument"])["Statement"]
    assert statement["Condition"] == {"ArnEquals": {"aws:PrincipalArn": [ROLE]}}


def test_endpoints_of_other_applications_are_not_listed(network: Network) -> None:
    Ec2Endpoints(client=network.ec2, application_id="other").create("sqs", network.settings, token="o")
    network.endpoints.create("logs", network.settings, token="t")
    [listed] = network.endpoints.list_all()
    assert (listed.service, listed.digest) == ("logs", network.settings.digest)
    assert listed.state is EndpointState.AVAILABLE
    assert listed.created_at_ms > 0


def test_deleted_endpoints_are_gone(network: Network) -> None:
    for service in network.settings.services:
        network.endpoints.create(service, network.settings, token=service)
    network.endpoints.delete([endpoint.endpoint_id for endpoint in network.endpoints.list_all()])
    assert network.endpoints.list_all() == []


def test_in_a_vpc_of_ones_own_an_endpoint_has_no_policy() -> None:
    """Private names send all of the VPC's calls through it."""
    assert EndpointSettings(vpc_id="v", subnet_ids=(), security_group_id="g", services=()).policy is None


@pytest.fixture
def stubbed() -> Iterator[tuple[Ec2Endpoints, Stubber]]:
    client = boto3.client("ec2", region_name=REGION, aws_access_key_id="t", aws_secret_access_key="t")
    with Stubber(client) as stub:
        yield Ec2Endpoints(client=client, application_id="app"), stub
        stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("pending", EndpointState.PENDING),
        ("Available", EndpointState.AVAILABLE),
        ("deleting", EndpointState.DELETING),
        ("failed", EndpointState.BROKEN),
        ("rejected", EndpointState.BROKEN),
        ("deleted", None),
    ],
)
def test_states_are_read_in_either_case(
    stubbed: tuple[Ec2Endpoints, Stubber], state: str, expected: EndpointState | None
) -> None:
    endpoints, stub = stubbed
    fields = {"VpcEndpointId": "vpce-1", "ServiceName": "com.amazonaws.r.sqs", "CreationTimestamp": TIME}
    asked = {"Filters": [{"Name": "tag:sluice:application", "Values": ["app"]}]}
    stub.add_response("describe_vpc_endpoints", {"VpcEndpoints": [{**fields, "State": state}]}, asked)
    assert [each.state for each in endpoints.list_all()] == ([expected] if expected else [])


@pytest.mark.parametrize(("code", "refused"), [("InvalidVpcEndpointId.NotFound", False), ("OperationInProgress", True)])
def test_a_delete_that_is_refused_is_an_error_unless_the_endpoint_is_gone(
    stubbed: tuple[Ec2Endpoints, Stubber], code: str, refused: bool
) -> None:
    endpoints, stub = stubbed
    failed = {"ResourceId": "vpce-1", "Error": {"Code": code, "Message": "m"}}
    stub.add_response("delete_vpc_endpoints", {"Unsuccessful": [failed]}, {"VpcEndpointIds": ANY})
    if refused:
        with pytest.raises(CallFailed, match="DeleteVpcEndpoints: OperationInProgress"):
            endpoints.delete(["vpce-1"])
    else:
        endpoints.delete(["vpce-1"])
