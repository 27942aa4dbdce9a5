"""Connects the programs of an operator to AWS, with the user's credentials or those of the embedded cloud."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError, ProfileNotFound
from botocore.session import Session

from sluice.aws.client_types import STSClient
from sluice.aws.clients import CONFIG, calls
from sluice.errors import BadConfiguration, CallFailed

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
STAGE_VARIABLE = "SLUICE_STAGE"  # Sluice's commands read this variable.
# Botocore settings for a session that ignores the user's profile and configuration files.
NOT_CONFIGURED = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
DEFAULT_PROFILE = "default"  # the name of boto3's default profile
# Environment variables that set a program's credentials, region or endpoint. Retries and certificates aren't included:
# https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html
KEY = re.compile("AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|(SESSION|SECURITY)_TOKEN)")
SERVICES_ENDPOINT = re.compile("AWS_(ENDPOINT_URL_.*|IGNORE_CONFIGURED_ENDPOINT_URLS)")
LEADING = re.compile(
    rf"{KEY.pattern}|{SERVICES_ENDPOINT.pattern}|AWS_(ENDPOINT_URL|(DEFAULT_)?(PROFILE|REGION)|CONFIG_FILE|SHARED_CREDENTIALS_FILE|CREDENTIAL_EXPIRATION"
    r"|ACCOUNT_ID|ROLE_(ARN|SESSION_NAME)|WEB_IDENTITY_TOKEN_FILE|CONTAINER_.*|EC2_METADATA_.*|SDK_LOAD_CONFIG)"
)


class NoConnection(BadConfiguration):
    """No region or no profile is set, so AWS can't be called. The text says what to set."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to an account, region and stage. `endpoint_url` replaces AWS's endpoints, unless it is None."""

    session: boto3.session.Session
    endpoint_url: str | None = None
    stage: str | None = None
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    # boto3's sessions aren't thread-safe.
    _creation_lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @property
    def region(self) -> str:
        """The AWS region, for example `eu-central-1`."""
        return self.session.region_name

    def client(self, service: str) -> Any:
        """Return the service's boto3 client, created once; its type depends on the name. Raises `NoConnection`."""
        with self._creation_lock:
            if service not in self._clients:
                try:
                    # The stubs have an overload for each service name, but here the name is a variable.
                    made = self.session.client(service, endpoint_url=self.endpoint_url, config=CONFIG)  # type: ignore[call-overload]
                except NoRegionError:
                    raise NoConnection(
                        "no region: pass --region, or --local for the embedded cloud, or set AWS_REGION"
                    ) from None
                self._clients[service] = made
            return self._clients[service]

    def pages(self, service: str, operation: str, **options: Any) -> Iterator[Mapping[str, Any]]:
        """Yield all pages of a paginated AWS listing. Raises `CallFailed`."""
        pages = iter(self.client(service).get_paginator(operation).paginate(**options))
        while True:
            with calls("".join(map(str.capitalize, operation.split("_")))):
                page = next(pages, None)
            if page is None:
                return
            yield page


def connect_user(*, region: str | None = None, profile: str | None = None, stage: str | None = None) -> Connection:
    """Connect as AWS's command line does: by profile, environment and configuration files. Raises `NoConnection`."""
    try:
        configured = Session(profile=profile)
        session = boto3.session.Session(
            region_name=region or os.environ.get("AWS_REGION"),  # boto3 itself ignores AWS_REGION
            botocore_session=configured,
        )
        endpoint_url = os.environ.get(ENDPOINT_VARIABLE) or configured.get_scoped_config().get("endpoint_url")
    except ProfileNotFound as error:
        raise NoConnection(f"{error}: see `aws configure list-profiles`") from None
    except BotoCoreError as error:
        raise NoConnection(f"AWS configuration: {error}") from error
    return Connection(session, endpoint_url, stage)


def connect_environment(variables: Mapping[str, str], *, stage: str | None = None) -> Connection:
    """Connect by these environment variables only, which the embedded cloud sets for each of its sites."""
    session = boto3.session.Session(
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_REGION"],
        botocore_session=Session(session_vars=NOT_CONFIGURED),
    )
    return Connection(session, variables[ENDPOINT_VARIABLE], stage)


def list_profiles() -> Mapping[str, str | None]:
    """Return the profiles in AWS's configuration files with their regions; none if the files can't be read."""
    with suppress(BotoCoreError):
        return {name: settings.get("region") for name, settings in Session().full_config["profiles"].items()}
    return {}


def fetch_account(connection: Connection) -> str:
    """Return the id of the account that the credentials belong to. Raises `CallFailed`."""
    client: STSClient = connection.client("sts")
    with calls("GetCallerIdentity"):
        return client.get_caller_identity()["Account"]


def fetch_user_id(connection: Connection) -> str:
    """Return the `aws:userid` of the credentials, which is the same for all credentials of one user or role session.

    The call needs no permission. Raises `CallFailed`.
    https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
    """
    with calls("GetCallerIdentity"):
        return str(connection.client("sts").get_caller_identity()["UserId"])


def build_environment(connection: Connection, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables for a program of Sluice or CDK that should use the same connection.

    On AWS that program finds and renews the credentials itself. Raises `NoConnection` without credentials.
    """
    if connection.endpoint_url:
        return {**remove_aws_variables(variables), **build_program_variables(connection)}
    _get_credentials(connection)
    values = {**variables, "AWS_REGION": connection.region, "AWS_DEFAULT_REGION": connection.region}
    if connection.session.profile_name == DEFAULT_PROFILE:
        return values
    # Keys in the environment would take precedence over AWS_PROFILE.
    return {k: v for k, v in values.items() if not KEY.fullmatch(k)} | {"AWS_PROFILE": connection.session.profile_name}


def build_program_variables(connection: Connection) -> Mapping[str, str]:
    """Return the environment variables for any program that should use the same connection.

    They replace all other AWS variables.

    On AWS the program gets only temporary credentials. Those of a role, of single sign-on or of a web identity are
    passed on as they are, until they expire. A user's own keys are exchanged for a session token of STS, which is valid
    for twelve hours and can't call IAM. A profile's name isn't passed on, because it has another meaning in each SDK,
    and in some none.

    Raises `NoConnection` without credentials, and if STS gives no session token.
    """
    frozen = _get_credentials(connection)
    keys = {"AccessKeyId": str(frozen.access_key), "SecretAccessKey": str(frozen.secret_key)}
    if frozen.token:
        keys["SessionToken"] = str(frozen.token)
    elif not connection.endpoint_url:
        try:
            with calls("GetSessionToken"):
                keys = connection.client("sts").get_session_token()["Credentials"]
        except CallFailed as error:
            raise NoConnection(
                f"STS gives no session token for these keys ({error}), and the program would get the keys themselves: "
                "they don't expire. Log in with credentials that do, for example by `aws sso login`"
            ) from error
    variables = {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_REGION": connection.region,
        "AWS_DEFAULT_REGION": connection.region,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    optional = {
        "AWS_SESSION_TOKEN": keys.get("SessionToken"),
        ENDPOINT_VARIABLE: connection.endpoint_url,
        STAGE_VARIABLE: connection.stage,
    }
    # If the connection has no endpoint URL, it also uses the endpoint variables of single services.
    services = (
        {} if connection.endpoint_url else {k: v for k, v in os.environ.items() if SERVICES_ENDPOINT.fullmatch(k)}
    )
    return {**variables, **services, **{name: value for name, value in optional.items() if value}}


def _get_credentials(connection: Connection) -> Any:
    """Return the current credentials. Raises `NoConnection` if there are none, or if their renewal fails."""
    try:
        credentials = connection.session.get_credentials()
        if credentials is not None:
            return credentials.get_frozen_credentials()
    except (BotoCoreError, ClientError) as error:
        raise NoConnection(f"AWS credentials: {error}") from error
    raise NoConnection("no AWS credentials: set AWS_PROFILE or pass --profile, or --local")


def remove_aws_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables without those that set a program's AWS credentials, region or endpoint."""
    return {name: value for name, value in environment.items() if not LEADING.fullmatch(name)}
