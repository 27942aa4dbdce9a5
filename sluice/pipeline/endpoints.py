"""The VPC endpoints that jobs need: decides which endpoints to create and delete. Pure.

Interface endpoints are billed by the hour, so they exist only while jobs run, and for some minutes after that.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec

# This tag holds the application's id. The jobs function is allowed to create and delete only endpoints with this tag.
OWNER_TAG = "sluice:application"
DIGEST_CHARACTERS = 16


class EndpointState(StrEnum):
    """State of an endpoint: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_VpcEndpoint.html."""

    PENDING = "pending"
    AVAILABLE = "available"
    DELETING = "deleting"
    BROKEN = "broken"  # The endpoint can only be deleted.


USABLE = frozenset({EndpointState.PENDING, EndpointState.AVAILABLE})


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, rename={"security_group_id": "group_id"}):
    """Settings of VPC endpoints: services, subnets, security group, and the roles that are allowed to use endpoints.

    Without `role_arns` the endpoints have no policy: all roles are allowed.
    """

    vpc_id: str
    subnet_ids: tuple[str, ...]
    security_group_id: str
    services: tuple[str, ...]
    role_arns: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A digest of the settings, by which endpoints with other settings are recognized."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def policy(self) -> str | None:
        """The endpoints' policy: allows only these roles, whose own policies limit the calls. None allows all roles."""
        if not self.role_arns:
            return None
        only = {"ArnEquals": {"aws:PrincipalArn": self.role_arns}}
        statement = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*", "Condition": only}
        return msgspec.json.encode({"Version": "2012-10-17", "Statement": [statement]}).decode()


class VpcEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A VPC endpoint of one service. `digest` is the digest of the settings at its creation."""

    endpoint_id: str
    service: str
    digest: str
    state: EndpointState
    created_at_ms: int


class EndpointPlan(msgspec.Struct, frozen=True):
    """Services whose endpoints to create, ids of endpoints to delete, and services that jobs can't reach yet."""

    services_to_create: tuple[str, ...]
    ids_to_delete: tuple[str, ...]
    unreachable_services: tuple[str, ...]


def plan_endpoints(
    settings: EndpointSettings, actual: Sequence[VpcEndpoint], *, is_needed: bool, is_idle: bool
) -> EndpointPlan:
    """Plan changes of endpoints. `is_needed`: a job runs or is about to start. `is_idle`: none ran since the timeout.

    A service gets a new endpoint only after the old endpoint is gone, because both have the same private DNS name.
    """
    digest = settings.digest
    usable = [endpoint for endpoint in actual if endpoint.digest == digest and endpoint.state in USABLE]
    taken = {endpoint.service for endpoint in actual}
    return EndpointPlan(
        services_to_create=tuple(service for service in settings.services if is_needed and service not in taken),
        ids_to_delete=tuple(
            endpoint.endpoint_id
            for endpoint in actual
            if endpoint.state is not EndpointState.DELETING and (is_idle or endpoint not in usable)
        ),
        unreachable_services=tuple(
            service
            for service in settings.services
            if not any(endpoint.service == service and endpoint.state is EndpointState.AVAILABLE for endpoint in usable)
        ),
    )
