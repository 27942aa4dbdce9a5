"""Credentials, regions, endpoints and AWS partitions, all from botocore. This is not a hot path.

Credentials are never pickled, logged or written. Spark's partitions contain only names (profile, role).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError

from sluice_spark.errors import InvalidOption, QueueBusy
from sluice_spark.sqs.signing import Credentials

# Matches sqs.eu-west-1.amazonaws.com, eu-west-1.queue.amazonaws.com, sqs-fips.us-gov-west-1…, and VPC endpoints.
_REGION_IN_HOST = re.compile(
    r"(?:^|\.)(?:sqs(?:-fips)?\.)?([a-z]{2,}(?:-[a-z]+)+-\d)\.(?:queue\.|vpce\.|api\.|amazonaws)"
)
_ACCOUNT = re.compile(r"\d{12}")

CredentialsNow = Callable[[], Credentials]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The AWS identity of calls: a role, else a profile, else the identity of botocore's default chain.

    A single role is for all queues. Several roles are each for the queues of their own account.
    """

    profile: str | None = None
    role_arns: tuple[str, ...] = ()
    role_session_name: str = "sluice-spark"
    external_id: str | None = None

    @property
    def role_arn(self) -> str | None:
        """The role, if there is exactly one. Method `for_queue` selects one of several roles."""
        return self.role_arns[0] if len(self.role_arns) == 1 else None

    def for_queue(self, queue_url: str) -> "Identity":
        """Return the identity for a queue. Raises InvalidOption if none of several roles is in the queue's account."""
        if len(self.role_arns) <= 1:
            return self
        account = account_from_url(queue_url)
        role = next((arn for arn in self.role_arns if account_from_role(arn) == account), None)
        if role is None:
            raise InvalidOption("roleArn", f"none of these roles is of the account of {queue_url}")
        return replace(self, role_arns=(role,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint's URL, and the region for the signature."""

    url: str
    region: str
    ca_bundle: str | None = None  # file of certificate authorities; None for the system's

    @property
    def host(self) -> str:
        """The value of header Host: the host name, with the port unless it is the scheme's default port."""
        parts = urlsplit(self.url)
        default = {"http": 80, "https": 443}.get(parts.scheme)
        return f"{parts.hostname}:{parts.port}" if parts.port and parts.port != default else str(parts.hostname)


@dataclass(frozen=True, slots=True)
class Place:
    """An endpoint, and a function that returns credentials for calls to the endpoint."""

    endpoint: Endpoint
    credentials: CredentialsNow


def account_from_url(queue_url: str) -> str | None:
    """Return the account id in a queue URL, its first path segment; None if there is none."""
    account = urlsplit(queue_url).path.strip("/").partition("/")[0]
    return account if _ACCOUNT.fullmatch(account) else None


def account_from_role(arn: str) -> str:
    """Return the account id in a role's ARN."""
    return arn.split(":")[4]


def region_from_url(queue_url: str) -> str | None:
    """Return the region in an AWS queue URL; None for an emulator's URL."""
    match = _REGION_IN_HOST.search(urlsplit(queue_url).hostname or "")
    return match.group(1) if match else None


class Places:
    """Finds the endpoint and credentials for each queue. Calls botocore once for each region and identity."""

    def __init__(self, *, region: str | None, endpoint: str | None, identity: Identity) -> None:
        self._region, self._endpoint, self._identity = region, endpoint, identity
        self._known: dict[tuple[str | None, Identity], Place] = {}

    def __call__(self, queue_url: str) -> Place:
        """Return the endpoint and credentials for a queue.

        Raises InvalidOption without a known region, credentials, or a role in the queue's account.
        """
        region, identity = self._region or region_from_url(queue_url), self._identity.for_queue(queue_url)
        if (region, identity) not in self._known:
            endpoint = self._resolve(queue_url, region)
            self._known[region, identity] = Place(endpoint, build_credentials_source(identity, region=endpoint.region))
        return self._known[region, identity]

    def _resolve(self, queue_url: str, region: str | None) -> Endpoint:
        """Resolve the endpoint with botocore, which applies partition, FIPS, dual-stack and AWS_ENDPOINT_URL_SQS."""
        session: Any = botocore.session.Session(profile=self._identity.profile)
        region = region or session.get_config_variable("region")
        if not region:
            raise InvalidOption("region", f"neither given, nor in the queue URL {queue_url}, nor configured")
        ca_bundle = session.get_config_variable("ca_bundle")
        if self._endpoint:
            return Endpoint(url=self._endpoint.rstrip("/") + "/", region=region, ca_bundle=ca_bundle)
        no_key = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}  # only resolves
        client = session.create_client("sqs", region_name=region, **no_key)
        url = client.meta.endpoint_url.rstrip("/") + "/"
        return Endpoint(url=url, region=client.meta.region_name, ca_bundle=ca_bundle)


def build_credentials_source(identity: Identity, *, region: str) -> CredentialsNow:
    """Return a function that returns the current credentials, and raises QueueBusy while they can't be refreshed.

    The function may block on the network during a refresh, so it must run in a thread. botocore refreshes temporary
    credentials from 15 minutes before their expiry. Raises InvalidOption if no credentials are found.
    """
    source = _find_credentials(client_session(identity, region=region))

    def get_current() -> Credentials:
        try:
            frozen = source.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:  # IAM delays changes, so refusals can be temporary.
            raise QueueBusy("GetCredentials", type(error).__name__, str(error)) from error
        return Credentials(access_key=frozen.access_key, secret_key=frozen.secret_key, token=frozen.token)

    return get_current


def client_session(identity: Identity, *, region: str | None) -> Any:
    """Open a botocore session whose clients call as the identity, and refresh an assumed role before it expires.

    Raises InvalidOption if no credentials are found.
    """
    session: Any = botocore.session.Session(profile=identity.profile)
    if not identity.role_arn:
        return session
    base_session: Any = botocore.session.Session(profile=identity.profile)
    region = region or session.get_config_variable("region")
    extra = {"RoleSessionName": identity.role_session_name}
    if identity.external_id:
        extra["ExternalId"] = identity.external_id

    def client(service: str, **arguments: Any) -> Any:
        # The session's region selects STS's regional endpoint.
        return base_session.create_client(service, **{"region_name": region, **arguments})

    fetcher = AssumeRoleCredentialFetcher(client, _find_credentials(base_session), identity.role_arn, extra_args=extra)
    role = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    session._credentials = role  # noqa: SLF001  botocore has no other way to give a session a key that it refreshes
    return session


def _find_credentials(session: Any) -> Any:
    source = session.get_credentials()
    if source is None:
        raise InvalidOption("profile", "no AWS credentials found: neither in the default chain nor in a profile")
    return source
