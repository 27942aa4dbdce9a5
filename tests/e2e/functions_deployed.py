"""Functions that aren't the project's own: those of its users, deployed beside it."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from tests.deployed import Deployed, retry_until_accepted

ROLE = "theirs"
# What AWS says of a role or a function that is there since a moment ago, or that somebody else is changing.
PASSING = frozenset({"AccessDenied", "InvalidParameterValueException", "ResourceConflictException"})


def deploy(deployed: Deployed, name: str, source: str, **more: Any) -> None:
    """A function with this code, which may read all queues. Its handler is `handler`."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("index.py", source)
    client = deployed.connection.client("lambda")
    role = _role(deployed)  # once: each change of its policy takes its time until it acts
    make: Callable[[], Any] = lambda: client.create_function(  # noqa: E731 - tried until the role acts
        FunctionName=name,
        Runtime="python3.13",
        Handler="index.handler",
        Role=role,
        Code={"ZipFile": archive.getvalue()},
        **more,
    )
    retry_until_accepted(make, passing=PASSING)


def _role(deployed: Deployed) -> str:
    """Make what their functions run as, where it isn't there; its ARN."""
    iam = deployed.connection.client("iam")
    with suppress(ClientError):  # it is there
        iam.create_role(
            RoleName=ROLE,
            AssumeRolePolicyDocument=_policy(Principal={"Service": "lambda.amazonaws.com"}, Action="sts:AssumeRole"),
        )
    reads = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"]
    iam.put_role_policy(RoleName=ROLE, PolicyName="reads", PolicyDocument=_policy(Action=reads, Resource="*"))
    arn: str = iam.get_role(RoleName=ROLE)["Role"]["Arn"]
    return arn


def _policy(**allowed: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **allowed}]})
