"""Stores settings that grow with the site in parameters of Systems Manager, which a function reads when it starts.

A function's environment variables have at most 4 KB in total: docs/decisions/0018.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence

from aws_cdk import Stack
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from sluice.errors import BadParameter

# The maximum of a standard parameter, which is free:
# https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
PARAMETER_BYTES = 4_096
# The maximum of one call: https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html
MOST = 10
TOKEN = re.compile(r"(\$\{Token\[[^\]]*\]\})")
TOKEN_BYTES = 160  # more than any ARN or URL of ours, by which a deployment replaces a token
KEY_CHARACTERS = 12
OWN = "Parameters are named by their content, which a next deployment changes; the wildcard stands after the function."


def parameters(scope: Construct, home: str, function: str, text: str) -> Sequence[str]:
    """Store a JSON text in parameters, and return their names in order. An empty text has none. Raises `BadParameter`.

    Names depend on the content: a deployment changes them together with the function, and an environment that has read
    the old ones keeps working until it is replaced. `home` is the prefix of the names.
    """
    cut = parts(f"function {function}", text)
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
    return [parameter.ref for parameter in made]  # references, so that the function is created after them


def parts(who: str, text: str) -> Sequence[str]:
    """Split a JSON text into values of parameters. Raises `BadParameter`, which names `who`, if it is too long."""
    # SSM treats `{{` as a reference. JSON has it only in strings, where the second brace can be escaped.
    cut = list(_parts(text.replace("{{", r"{\u007b")))
    if len(cut) > MOST:
        raise BadParameter("sluice", f"what {who} is told of queues, peers and routes has more than {MOST} times 4 KB")
    return cut


def names(stack: Stack, home: str, function: str) -> str:
    """Return the ARN pattern of a function's parameters, of this deployment and the next."""
    return stack.format_arn(service="ssm", resource="parameter", resource_name=f"{home}/{function}/*")


def _parts(text: str) -> Iterator[str]:
    """Split a text so that each part fits into a parameter after a deployment has replaced its tokens."""
    part, room = "", PARAMETER_BYTES
    for piece in _pieces(text):
        size = TOKEN_BYTES if TOKEN.fullmatch(piece) else len(piece.encode())
        if size > room:
            yield part
            part, room = "", PARAMETER_BYTES
        part, room = part + piece, room - size
    if part:
        yield part


def _pieces(text: str) -> Iterator[str]:
    """Yield tokens, and the single characters between them."""
    for piece in TOKEN.split(text):
        yield from [piece] if TOKEN.fullmatch(piece) else piece
