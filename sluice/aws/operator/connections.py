"""How an operator's programs reach AWS: with the user's own credentials, or the embedded cloud's root."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import BotoCoreError, NoRegionError, ProfileNotFound

from sluice.aws.clients import CONFIG, calls
from sluice.errors import BadConfiguration

if TYPE_CHECKING:  # boto3-stubs are for the type checker: no program needs them
    from mypy_boto3_sts import STSClient

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
DEFAULT_PROFILE = "default"  # as boto3 calls it where none is said


class NoConnection(BadConfiguration):
    """AWS can't even be asked: no region, or no such profile. The text says what to set."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One account and region, and the stage there. `endpoint_url` stands in for AWS, None where it is AWS itself."""

    session: boto3.session.Session
    endpoint_url: str | None = None
    stage: str | None = None

    @property
    def region(self) -> str:
        """The region, for example `eu-central-1`."""
        return self.session.region_name

    def client(self, service: str) -> Any:
        """Make a boto3 client; the caller knows its type by the service's name. Raises `NoConnection`."""
        try:
            # The stubs name every service: ours is an argument.
            return self.session.client(service, endpoint_url=self.endpoint_url, config=CONFIG)  # type: ignore[call-overload]
        except NoRegionError:
            raise NoConnection("no region: pass --region or set AWS_REGION") from None


def of_user(*, region: str | None = None, profile: str | None = None, stage: str | None = None) -> Connection:
    """Connect as the AWS command line would: by profile, environment, configuration files. Raises `NoConnection`."""
    try:
        session = boto3.session.Session(
            region_name=region or os.environ.get("AWS_REGION"),  # boto3 itself knows only AWS_DEFAULT_REGION
            profile_name=profile,
        )
    except ProfileNotFound as error:
        raise NoConnection(f"{error}: see `aws configure list-profiles`") from None
    except BotoCoreError as error:
        raise NoConnection(f"AWS configuration: {error}") from error
    return Connection(session, os.environ.get(ENDPOINT_VARIABLE) or None, stage)


def of_environment(variables: Mapping[str, str], *, stage: str | None = None) -> Connection:
    """Connect by what these variables say, and nothing else: as the embedded cloud gives them for one of its sites."""
    session = boto3.session.Session(
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_REGION"],
    )
    return Connection(session, variables[ENDPOINT_VARIABLE], stage)


def account_of(connection: Connection) -> str:
    """Ask which account the credentials are of. Raises `CallFailed`."""
    client: STSClient = connection.client("sts")
    with calls("GetCallerIdentity"):
        return client.get_caller_identity()["Account"]


def variables_of(connection: Connection) -> Mapping[str, str]:
    """With which a program acts as the connection does. Raises `NoConnection` without credentials."""
    credentials = connection.session.get_credentials()
    if credentials is None:
        raise NoConnection("no AWS credentials: set AWS_PROFILE or pass --profile, or --local")
    frozen = credentials.get_frozen_credentials()
    variables = {"AWS_REGION": connection.region, "AWS_DEFAULT_REGION": connection.region}
    if connection.endpoint_url:
        # Of the embedded cloud; on AWS a program finds credentials itself, and renews them.
        variables |= {
            ENDPOINT_VARIABLE: connection.endpoint_url,
            "AWS_ACCESS_KEY_ID": str(frozen.access_key),
            "AWS_SECRET_ACCESS_KEY": str(frozen.secret_key),
        }
    elif connection.session.profile_name != DEFAULT_PROFILE:
        variables["AWS_PROFILE"] = connection.session.profile_name
    return variables
