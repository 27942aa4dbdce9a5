"""The VPC endpoints that jobs need, and the decision which to create and delete. Pure.

Interface endpoints cost by the hour, so they exist only while jobs run, and for a while after that.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec

# Has the application's id. The jobs function may create and delete only endpoints with this tag.
OWNER_TAG = "sluice:application"
DIGEST_CHARACTERS = 16


class EndpointState(StrEnum):
    """State of an endpoint: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_VpcEndpoint.html."""

    PENDING = "pending"
    AVAILABLE = "available"
    DELETING = "deleting"
    BROKEN = "broken"  # the endpoint can only be deleted


USABLE = frozenset({EndpointState.PENDING, EndpointState.AVAILABLE})


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, rename={"security_group_id": "group_id"}):
    """The services that get an endpoint, the endpoints' subnets and security group, and the roles that may use them.

    No `role_arns` means no policy: everybody may call.
    """

    vpc_id: str
    subnet_ids: tuple[str, ...]
    security_group_id: str
    services: tuple[str, ...]
    role_arns: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """The version of the settings, by which an endpoint of another version is recognized."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def policy(self) -> str | None:
        """The policy of each endpoint: only these roles may call through it, and their own policies limit the calls."""
        if not self.role_arns:
            return None
        only = {"ArnEquals": {"aws:PrincipalArn": self.role_arns}}
        statement = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*", "Condition": only}
        return msgspec.json.encode({"Version": "2012-10-17", "Statement": [statement]}).decode()


class VpcEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of one service. `digest` is the version of the settings that it was created with."""

    endpoint_id: str
    service: str
    digest: str
    state: EndpointState
    created_at_ms: int


class EndpointPlan(msgspec.Struct, frozen=True):
    """Services that get an endpoint, ids of endpoints to delete, and services that jobs don't reach yet."""

    create: tuple[str, ...]
    delete: tuple[str, ...]
    unreachable: tuple[str, ...]


def plan_endpoints(
    settings: EndpointSettings, actual: Sequence[VpcEndpoint], *, is_needed: bool, is_idle: bool
) -> EndpointPlan:
    """Plan the changes. `is_needed`: a job runs or is about to start; `is_idle`: none has run for a while.

    A service gets a new endpoint only after the old one is gone, because both have the same private name.
    """
    digest = settings.digest
    usable = [endpoint for endpoint in actual if endpoint.digest == digest and endpoint.state in USABLE]
    taken = {endpoint.service for endpoint in actual}
    return EndpointPlan(
        create=tuple(service for service in settings.services if is_needed and service not in taken),
        delete=tuple(
            endpoint.endpoint_id
            for endpoint in actual
            if endpoint.state is not EndpointState.DELETING and (is_idle or endpoint not in usable)
        ),
        unreachable=tuple(
            service
            for service in settings.services
            if not any(endpoint.service == service and endpoint.state is EndpointState.AVAILABLE for endpoint in usable)
        ),
    )
