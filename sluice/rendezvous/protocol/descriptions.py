"""WebRTC session descriptions as text: the JSON of `{type, sdp}`. Pure; what is inside the SDP isn't looked at."""

import json
from typing import Any

SDP_TYPES = frozenset({"offer", "pranswer", "answer", "rollback"})


def description_fault(text: str) -> str | None:
    """Why `text` isn't a session description, or None where it is one."""
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    if not isinstance(description, dict):
        return "not a JSON object"
    return _member_fault(description)


def _member_fault(description: dict[str, Any]) -> str | None:
    for name in ("type", "sdp"):
        if name not in description:
            return f"no {name}"
        if not isinstance(description[name], str):
            return f"{name} is not a string"
    if description["type"] not in SDP_TYPES:
        return f"unknown SDP type {description['type'][:32]!r}"
    return None
