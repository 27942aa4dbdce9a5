"""JSON objects read the way Snowflake's programs write them. Pure.

Keys match without regard to case, unknown keys are ignored, `null` is an absent field, and the last of two equal
keys wins, as in Go's encoding/json, which both of Snowflake's ends use.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from sluice.errors import Malformed


def read_object(text: str | bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """The `fields` that the JSON object has, by the names given; the absent ones are left out.

    Raises `Malformed` where `text` isn't a JSON object or a field has another type.
    """
    decoded = _decode(text)
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise Malformed(f"cannot read a JSON {_json_name(decoded)} as an object")
    return _pick(decoded, fields)


def _decode(text: str | bytes) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", errors="replace")
        return json.loads(text, parse_constant=_not_json)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    except ValueError as error:
        raise Malformed(str(error)) from None


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _pick(decoded: dict[str, Any], fields: Mapping[str, type]) -> dict[str, Any]:
    by_folded = {name.casefold(): name for name in fields}
    picked: dict[str, Any] = {}
    for key, value in decoded.items():
        name = by_folded.get(key.casefold())
        if name is not None and value is not None:
            picked[name] = _typed(name, value, fields[name])
    return picked


def _typed(name: str, value: Any, wanted: type) -> Any:
    # bool is an int to Python, not to JSON.
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise Malformed(f"cannot read a JSON {_json_name(value)} into field {name}")
    return scrub(value) if isinstance(value, str) else value


def scrub(text: str) -> str:
    r"""`text` with lone surrogates (from escapes such as `\ud800`) replaced: they can't be sent as UTF-8."""
    return text.encode("utf-8", errors="replace").decode() if not text.isascii() else text


def _json_name(value: Any) -> str:
    names: dict[type, str] = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
