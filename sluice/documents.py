"""Reads untrusted JSON with a fixed limit of nesting. Pure.

Python's own decoder fails when the stack is exhausted, so its limit depends on the caller's depth.
"""

import json
import re
from typing import Any

MAX_DEPTH = 100  # Arrays and objects may be nested this deeply.

# A string is skipped as a whole, even without its end. Possessive quantifiers keep the matching time linear.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class NestedTooDeep(json.JSONDecodeError):
    """The JSON text has more than `MAX_DEPTH` levels. The position is that of the first excess level."""


def read_json(text: str | bytes, **hooks: Any) -> Any:
    """Decode JSON; `hooks` are arguments of `json.loads`. Raises ValueError, or `NestedTooDeep` for excess levels."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_depth(text)
    return json.loads(text, **hooks)


def check_depth(text: str, *, levels: int = MAX_DEPTH) -> None:
    """Raise `NestedTooDeep` if the JSON text has more levels than allowed. Text that isn't JSON may pass."""
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
