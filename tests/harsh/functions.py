"""Small functions, deployed by Lambda's API."""

import io
import json
import zipfile
from typing import Any

from botocore.exceptions import ClientError

from sluice.aws.connections import Connection
from tests.harsh.conftest import eventually, role


def deploy_function(
    account: Connection, name: str, source: str, *, role_arn: str | None = None, timeout_s: int = 30
) -> str:
    """Makes a function with this role or one of its own, once that acts; its ARN."""
    functions, role_arn = account.client("lambda"), role_arn or role(account, name)
    arn: str = eventually(
        lambda: functions.create_function(
            FunctionName=name,
            Role=role_arn,
            Runtime="python3.13",
            Handler="index.handler",
            Code={"ZipFile": code(source)},
            Timeout=timeout_s,
        )["FunctionArn"],
        unless=functions.exceptions.InvalidParameterValueException,
    )
    return arn


def code(source: str) -> bytes:
    """The module `index`, as Lambda takes it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("index.py", source)
    return archive.getvalue()


def invoke(account: Connection, name: str, event: Any) -> Any:
    """What it returns; for one that fails, what that is told as."""
    functions = account.client("lambda")
    done = eventually(
        lambda: functions.invoke(FunctionName=name, Payload=json.dumps(event).encode()), unless=ClientError
    )
    return json.loads(done["Payload"].read() or b"null")
