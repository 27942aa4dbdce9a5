"""What a function is told that grows with the site: parameters of Systems Manager, which it reads as it starts.

A function's variables have 4 KB together, whatever a site has: docs/decisions/0018.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence

from aws_cdk import Stack
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from sluice.errors import BadParameter

# Of a standard parameter, which costs nothing:
# https://docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html
PARAMETER_BYTES = 4_096
# Of one call: https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetParameters.html
MOST = 10
TOKEN = re.compile(r"(\$\{Token\[[^\]]*\]\})")
TOKEN_BYTES = 160  # more than any ARN or URL of ours, which a deployment puts in a token's place
KEY_CHARACTERS = 12
OWN = "Parameters are named by their content, which a next deployment changes; the wildcard stands after the function."


def parameters(scope: Construct, home: str, function: str, text: str) -> Sequence[str]:
    """Store a JSON text in parameters; their names, in order. None for an empty text. Raises `BadParameter`.

    Other content has other names: a deployment changes them and the function together, and an environment that reads
    the old ones goes on until it is replaced. `home` is what their names begin with.
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
    return [parameter.ref for parameter in made]  # that a function is made after them


def parts(who: str, text: str) -> Sequence[str]:
    """Cut a JSON text into what parameters hold. Raises `BadParameter`, which says `who` is told too much."""
    # SSM takes `{{` for a reference. In JSON it stands in texts alone, where the second may be escaped.
    cut = list(_parts(text.replace("{{", r"{\u007b")))
    if len(cut) > MOST:
        raise BadParameter("sluice", f"what {who} is told of queues, peers and routes has more than {MOST} times 4 KB")
    return cut


def names(stack: Stack, home: str, function: str) -> str:
    """Name a function's parameters, of this deployment and the next, by their ARN."""
    return stack.format_arn(service="ssm", resource="parameter", resource_name=f"{home}/{function}/*")


def _parts(text: str) -> Iterator[str]:
    """Cut a text such that each part fits into a parameter, whatever a deployment puts in its tokens' places."""
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
    """Give tokens, and single characters between them."""
    for piece in TOKEN.split(text):
        yield from [piece] if TOKEN.fullmatch(piece) else piece
