r"""Regular expressions on attribute values: the dialect, compiled and searched. Pure.

The dialect is that of the `regex` library, version 1, with look-around, back-references, named groups, Unicode classes
and inline flags. Patterns are searched for, by default in any case. Two rules are from Rust's dialect, in which
mirrord's filters are written: `$` matches only at the end of the text, not before a last newline. And case is folded
character by character, so that `ss` doesn't match `ß`.
"""

from functools import lru_cache

import regex

from sluice.splitting.filters.dialect import MAX_LEVELS, Kind, find_excess_depth, tokens
from sluice.splitting.filters.values import MAX_PATTERN_CHARACTERS

TIME_LIMIT_S = 0.05  # A search may take this many seconds; slower patterns backtrack almost endlessly.
MAX_COMPILED = 8_192  # The cache has at most this many compiled patterns.

_EXACT = regex.VERSION1
_FLAGS = _EXACT | regex.IGNORECASE
_SIMPLE_CASE = "(?-f)"  # Without it, regex's VERSION1 folds one character to several.


class PatternTimedOut(Exception):  # This exception is control flow to the router, not a SluiceError.
    """A search took too long and counts as no match. The sessions with the pattern should be cancelled."""


class PatternFailed(PatternTimedOut):
    """A pattern failed in a search although a check accepted it, perhaps in another version of the library."""


def matches(pattern: str, text: str, *, exact_case: bool = False, time_limit_s: float = TIME_LIMIT_S) -> bool:
    """Return whether the pattern is found in the text. Raises `PatternTimedOut`, or `PatternFailed` if invalid."""
    try:
        return _compile(pattern, exact_case).search(text, timeout=time_limit_s, concurrent=False) is not None
    except TimeoutError as error:
        raise PatternTimedOut(pattern) from error
    except (MemoryError, regex.error) as error:
        raise PatternFailed(pattern) from error


def find_problem(pattern: str, *, exact_case: bool = False) -> str | None:
    """Return the reason why the pattern can't be used; None if it can be used."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"is longer than {MAX_PATTERN_CHARACTERS} characters"
    at = find_excess_depth(pattern)
    if at is not None:
        return f"doesn't compile: nests more than {MAX_LEVELS} groups and classes at position {at}"
    try:
        # Compile the pattern first as its author wrote it, so that the position in an error message is right.
        regex.compile(pattern, _EXACT if exact_case else _FLAGS)
        _compile(pattern, exact_case)
    except regex.error as error:
        return f"doesn't compile: {error}"
    except (ValueError, OverflowError, MemoryError) as error:
        return f"doesn't compile: {error or type(error).__name__}"
    return None


@lru_cache(MAX_COMPILED)
def _compile(pattern: str, exact_case: bool) -> regex.Pattern[str]:  # noqa: FBT001 - a cache keeps no keywords in order
    flags = _EXACT if exact_case else _FLAGS
    return regex.compile(_SIMPLE_CASE + replace_end_anchors(pattern), flags, cache_pattern=False)


def replace_end_anchors(pattern: str) -> str:
    r"""Replace by `\Z` each `$` that means the text's end: outside character classes, and not in multiline mode."""
    if "$" not in pattern:
        return pattern
    return "".join(r"\Z" if token.kind is Kind.END and not token.multiline else token.text for token in tokens(pattern))
