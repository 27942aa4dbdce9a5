"""Reads a site's deployment from the outputs of its stacks."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sluice.aws.client_types import CloudFormationClient
from sluice.aws.clients import calls
from sluice.aws.connections import Connection
from sluice.codec import convert
from sluice.errors import BadConfiguration, CallFailed
from sluice.stages import add_stage_prefix

if TYPE_CHECKING:  # Only the type checker has boto3-stubs.
    from mypy_boto3_cloudformation.type_defs import OutputTypeDef, StackTypeDef


STACK = "SluiceRendezvous"
OUTPUTS = "outputs"  # a construct stores its stack's outputs in parameters below `/STACK/outputs`
NO_STACK = "ValidationError"  # CloudFormation reports a missing stack, and few other errors, with this code.
# Error codes: of botocore if there are no credentials, and of AWS if the credentials are invalid.
NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "SSOTokenLoadError"}
)
BAD_CREDENTIALS = frozenset({"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "SignatureDoesNotMatch"})


class NotUsable(BadConfiguration):
    """No usable deployment was found. The text says what to do."""


class NotDeployed(NotUsable):
    """The requested stack doesn't exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackView:
    """A stack's outputs, CloudFormation's status of the stack, and the time of its creation or last change."""

    stack_id: str
    outputs: Mapping[str, str]
    status: str
    changed_ms: int

    @classmethod
    def from_description(cls, stack: "StackTypeDef") -> "StackView":
        """Parse CloudFormation's description of a stack."""
        changed_at = stack.get("LastUpdatedTime") or stack.get("CreationTime")
        return cls(
            stack_id=stack.get("StackId", ""),
            outputs=_collect_outputs(stack.get("Outputs", [])),
            status=stack.get("StackStatus", ""),
            changed_ms=0 if changed_at is None else round(changed_at.timestamp() * 1000),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The outputs of a site's rendezvous stack.

    `broker_url` is the base URL of `/proxy` and `/answer`, `client_url` is that of `/client` and `/amp/client/`.
    """

    offers_queue_url: str
    broker_url: str
    client_url: str
    client_user_name: str
    table_name: str
    dead_letters_url: str
    waiting_table_name: str


def read_deployment(connection: Connection, outputs: Mapping[str, str] | None = None) -> Deployment:
    """Read the deployment from CloudFormation, unless its `outputs` are passed. Raises `NotUsable`, `CallFailed`."""
    stack_values = read_stack_outputs(connection, STACK) if outputs is None else outputs
    keys = {field.name: "".join(map(str.capitalize, field.name.split("_"))) for field in fields(Deployment)}
    values = {name: get_output(stack_values, STACK, key) for name, key in keys.items()}
    urls = {name: build_callable_url(values[name], connection.endpoint_url) for name in ("broker_url", "client_url")}
    return Deployment(**values | urls)


def build_callable_url(function_url: str, endpoint_url: str | None) -> str:
    """Return the URL to call a function. In the embedded cloud, its host is the cloud's own endpoint."""
    match = re.match(r"https?://([^./]+)\.lambda-url\.", function_url)
    if endpoint_url is None or match is None:
        return function_url
    return f"{endpoint_url.rstrip('/')}/_aws/lambda-url/{match[1]}/"


def read_stack_outputs(connection: Connection, name: str) -> Mapping[str, str]:
    """Read the outputs of one of the site's stacks, by its name without the stage. Raises like `fetch_outputs`.

    A site in a user's own CDK app has no such stack, but its construct has stored the same outputs.
    """
    stack = add_stage_prefix(name, connection.stage)
    try:
        return fetch_outputs(connection, stack)
    except NotDeployed:
        return _collect_outputs(_read_stored(connection, stack))


def list_outputs(connection: Connection, name: str) -> Sequence[Mapping[str, str]]:
    """Read a stack's outputs with their descriptions, in CloudFormation's format."""
    stack = add_stage_prefix(name, connection.stage)
    try:
        return [*_describe_stack(connection, stack).get("Outputs", [])]  # type: ignore[list-item]  # texts by names
    except NotDeployed:
        return _read_stored(connection, stack)


def fetch_outputs(connection: Connection, name: str) -> Mapping[str, str]:
    """Read the outputs of any stack. Raises `NotDeployed`, `NotUsable`, or `CallFailed` for another refusal."""
    return _collect_outputs(_describe_stack(connection, name).get("Outputs", []))


def _describe_stack(connection: Connection, name: str) -> "StackTypeDef":
    client: CloudFormationClient = connection.client("cloudformation")
    try:
        with _translate_errors():
            [stack] = client.describe_stacks(StackName=name)["Stacks"]
    except CallFailed as error:
        if error.code == NO_STACK:
            raise build_not_deployed_error(connection, name) from error
        raise
    return stack


def list_stacks(connection: Connection) -> Mapping[str, StackView]:
    """Return all stacks of the account and region, by name. Raises the errors of `fetch_outputs`."""
    client: CloudFormationClient = connection.client("cloudformation")
    with _translate_errors():
        pages = list(client.get_paginator("describe_stacks").paginate())
    return {stack["StackName"]: StackView.from_description(stack) for page in pages for stack in page["Stacks"]}


def read_stored_outputs(connection: Connection, stack: str) -> Mapping[str, str]:
    """Read the outputs that a construct in a user's own stack stored under this name. Raises `NotDeployed`."""
    return _collect_outputs(_read_stored(connection, stack))


def _read_stored(connection: Connection, stack: str) -> Sequence[Mapping[str, str]]:
    try:
        with calls("GetParametersByPath"):
            parameters = connection.client("ssm").get_parameters_by_path(Path=f"/{stack}/{OUTPUTS}")["Parameters"]
    except CallFailed as error:  # a denied request is reported like a missing stack, as most sites have one
        raise build_not_deployed_error(connection, stack) from error
    if not parameters:
        raise build_not_deployed_error(connection, stack)
    parts = {int(parameter["Name"].rsplit("/", 1)[1]): parameter["Value"] for parameter in parameters}
    return convert(json.loads("".join(parts[place] for place in sorted(parts))), list[dict[str, str]], of=stack)


def _collect_outputs(outputs: "Sequence[Mapping[str, str] | OutputTypeDef]") -> Mapping[str, str]:
    return {entry["OutputKey"]: entry["OutputValue"] for entry in outputs}


def build_not_deployed_error(connection: Connection, stack: str) -> NotDeployed:
    """Build the error for a stack that isn't deployed, with the stack's full name and the command that deploys it."""
    return NotDeployed(
        f"stack {stack} is not deployed in {connection.region}: `make deploy`, or `sluice local up` and --local"
    )


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        with calls("DescribeStacks"):
            yield
    except CallFailed as error:
        if error.code in NO_CREDENTIALS:
            raise NotUsable(
                "no AWS credentials: set AWS_PROFILE or pass --profile, or --local for the embedded cloud"
            ) from error
        if error.code in BAD_CREDENTIALS:
            raise NotUsable(
                f"AWS no longer accepts these credentials ({error.code}): log in again, or pass another --profile"
            ) from error
        raise


def read_stack_output(connection: Connection, stack: str, key: str) -> str:
    """Read one output of a stack. Raises what `read_stack_outputs` raises, or `NotUsable` without that output."""
    return get_output(read_stack_outputs(connection, stack), stack, key)


def get_output(outputs: Mapping[str, str], stack: str, key: str) -> str:
    """Return one of a stack's outputs. Raises `NotUsable` if the stack has no such output."""
    if not outputs.get(key):
        raise NotUsable(f"stack {stack} has no output {key}: it is an older one, or still being made; `make deploy`")
    return outputs[key]
