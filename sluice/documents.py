"""JSON as others send it: read within a limit of nesting. Pure.

Python's decoder gives up where its stack ends, so what it refuses depends on how deep the caller is. The limit is ours.
"""

import json
import re
from typing import Any

MAX_DEPTH = 100  # levels of arrays and objects within each other

# A string is skipped whole, also one that doesn't end; possessive, so that no text takes more than one pass.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class NestedTooDeep(json.JSONDecodeError):
    """A text with more than `MAX_DEPTH` levels; says where it goes beyond."""


def read_json(text: str | bytes, **hooks: Any) -> Any:
    """Decode the text; `hooks` are those of `json.loads`. Raises ValueError; for too many levels `NestedTooDeep`."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_depth(text)
    return json.loads(text, **hooks)


def check_depth(text: str, *, levels: int = MAX_DEPTH) -> None:
    """Raise `NestedTooDeep` if the JSON text has more levels. What isn't JSON passes, or is too deep."""
    if text.count("[") + text.count("{") <= levels:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > levels:
                raise NestedTooDeep(f"nested too deep, more than {levels} levels", text, match.start())
        elif match[0] in "]}":
            depth -= 1
