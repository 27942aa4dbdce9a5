"""The VPC endpoints that jobs need, in EC2: an adapter for `sluice.pipeline.reconciler.Endpoints`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from sluice.aws.clients import calls
from sluice.errors import CallFailed
from sluice.pipeline.endpoints import OWNER_TAG, EndpointSettings, EndpointState, VpcEndpoint

DIGEST_TAG = "sluice:digest"
GONE = "deleted"
NOT_FOUND = "InvalidVpcEndpointId.NotFound"


class Ec2Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The interface endpoints of an EMR Serverless application, found by a tag. `client` is boto3's client of `ec2`."""

    client: Any
    application_id: str

    def list_all(self) -> Sequence[VpcEndpoint]:
        """List all endpoints of the application, also those that are being deleted. Raises `CallFailed`."""
        with calls("DescribeVpcEndpoints"):
            pages = self.client.get_paginator("describe_vpc_endpoints").paginate(
                Filters=[{"Name": f"tag:{OWNER_TAG}", "Values": [self.application_id]}]
            )
            listed = [endpoint for page in pages for endpoint in page["VpcEndpoints"]]
        return [_parse_endpoint(fields) for fields in listed if fields["State"].lower() != GONE]

    def create(self, service: str, settings: EndpointSettings, *, token: str) -> None:
        """Create an endpoint that has the service's usual DNS name in the VPC, once per token. Raises `CallFailed`."""
        tags = {OWNER_TAG: self.application_id, DIGEST_TAG: settings.digest}
        policy = settings.policy
        with calls("CreateVpcEndpoint"):
            self.client.create_vpc_endpoint(
                VpcEndpointType="Interface",
                VpcId=settings.vpc_id,
                ServiceName=f"com.amazonaws.{self.client.meta.region_name}.{service}",
                SubnetIds=list(settings.subnet_ids),
                SecurityGroupIds=[settings.security_group_id],
                PrivateDnsEnabled=True,
                ClientToken=token,
                TagSpecifications=[
                    {
                        "ResourceType": "vpc-endpoint",
                        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                    }
                ],
                **({"PolicyDocument": policy} if policy else {}),
            )

    def delete(self, endpoint_ids: Sequence[str]) -> None:
        """Delete endpoints. Raises `CallFailed` if EC2 refuses to delete an endpoint that exists."""
        with calls("DeleteVpcEndpoints"):
            answer = self.client.delete_vpc_endpoints(VpcEndpointIds=list(endpoint_ids))
        for failed in answer.get("Unsuccessful", []):
            if failed["Error"]["Code"] != NOT_FOUND:
                raise CallFailed("DeleteVpcEndpoints", failed["Error"]["Code"], failed["Error"].get("Message", ""))

    def delete_all(self) -> bool:
        """Delete all endpoints. Returns True if none is left, not even one in deletion. Raises `CallFailed`."""
        left = self.list_all()
        ids = [endpoint.endpoint_id for endpoint in left if endpoint.state is not EndpointState.DELETING]
        if ids:
            self.delete(ids)
        return not left


def _parse_endpoint(fields: dict[str, Any]) -> VpcEndpoint:
    tags = {tag["Key"]: tag["Value"] for tag in fields.get("Tags", [])}
    state = fields["State"].lower()  # The API's documentation and its responses differ in case.
    return VpcEndpoint(
        endpoint_id=fields["VpcEndpointId"],
        service=fields["ServiceName"].rpartition(".")[2],
        digest=tags.get(DIGEST_TAG, ""),
        state=EndpointState(state) if state in list(EndpointState) else EndpointState.BROKEN,
        created_at_ms=int(fields["CreationTimestamp"].timestamp() * 1000),
    )
