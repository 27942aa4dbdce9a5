"""Reads the Systems Manager parameters that stacks store for their functions."""

from collections.abc import Sequence

from sluice.aws.clients import calls, make_client
from sluice.errors import BadSetting
from sluice.settings import STORED_NAMES


def read_parameters(names: Sequence[str]) -> str:
    """Read a text that is stored in parts, in up to ten parameters, in order. Raises `CallFailed`, `BadSetting`.

    A function reads its parameters once, at its start, so the client isn't kept.
    """
    with calls("GetParameters"):
        response = make_client("ssm").get_parameters(Names=list(names))
    parts = {parameter["Name"]: parameter["Value"] for parameter in response["Parameters"]}
    missing = [name for name in names if name not in parts]
    if missing:
        raise BadSetting(STORED_NAMES, f"there is no parameter {', '.join(missing)}")
    return "".join(parts[name] for name in names)
