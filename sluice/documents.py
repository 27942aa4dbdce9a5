"""JSON objects out of messages' bodies. Pure."""

import json
from typing import Any

from sluice.errors import Malformed


def json_object(body: str, *, of: str) -> dict[str, Any]:
    """Read the object. Raises `Malformed`, in the decoder's words, or with what the body is `of`: `an event`."""
    try:
        document = json.loads(body)
    except RecursionError:
        raise Malformed("nested too deep") from None
    except ValueError as error:
        raise Malformed(str(error)) from None
    if not isinstance(document, dict):
        raise Malformed(f"{of} is a JSON object")
    return document
