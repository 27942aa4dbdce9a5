"""Stores settings that grow with the site in parameters of Systems Manager, which a function reads at its start.

A function's environment variables have at most 4 KB in total: docs/decisions/0018.
"""

import hashlib
import json
import re
from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from sluice.errors import BadParameter

# A standard parameter, which is free, has this size limit:
# https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
PARAMETER_BYTES = 4_096
# Each call has this limit: https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html
MOST = 10
PIECE = re.compile(r"\$\{Token\[[^\]]*\]\}|.", re.DOTALL)  # Matches a CDK token, or a single character between tokens.
TOKEN_BYTES = 160  # Longest ARN or URL that replaces a token at deployment.
KEY_CHARACTERS = 12
OWN = "Parameters' names depend on their content, which deployments change; the wildcard follows the function's name."


def store_text(scope: Construct, home: str, function: str, text: str) -> Sequence[str]:
    """Store a JSON text in parameters, and return their names in order. Raises `BadParameter` if the text is too long.

    An empty text has no parameters. Names begin with `home` and depend on the content. A deployment changes them with
    the function, and an execution environment that has read the old ones works until it is replaced.
    """
    cut = split_into_parts(f"function {function}", text)
    key = hashlib.sha256(json.dumps(Stack.of(scope).resolve(cut)).encode()).hexdigest()[:KEY_CHARACTERS]
    made = [
        ssm.CfnParameter(
            scope,
            f"{function.capitalize()}Settings{key}n{place}",
            name=f"/{home}/{function}/{key}/{place}",
            type="String",
            tier="Standard",
            value=value,
        )
        for place, value in enumerate(cut)
    ]
    return [parameter.ref for parameter in made]  # These references make CloudFormation create the function later.


def split_into_parts(owner: str, text: str) -> Sequence[str]:
    """Split a JSON text into parameter values that still fit after a deployment has replaced their CDK tokens.

    Raises `BadParameter`, which names the function `owner`, if the text is too long.
    """
    # Systems Manager treats `{{` as a reference. JSON has `{{` only in strings, where a brace can be escaped.
    cut, room = list[str](), 0
    for piece in PIECE.findall(text.replace("{{", r"{\u007b")):
        size = TOKEN_BYTES if len(piece) > 1 else len(piece.encode())
        if size > room:
            cut.append("")
            room = PARAMETER_BYTES
        cut[-1] += piece
        room -= size
    if len(cut) > MOST:
        raise BadParameter("sluice", f"{owner}: its settings of queues, peers and routes exceed {MOST} times 4 KB")
    return cut


def format_names_pattern(stack: Stack, home: str, function: str) -> str:
    """Return the ARN pattern of a function's parameters. The pattern also matches parameters of later deployments."""
    return stack.format_arn(service="ssm", resource="parameter", resource_name=f"{home}/{function}/*")
