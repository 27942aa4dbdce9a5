r"""Regular expressions on attribute values: the dialect, compiled and searched. Pure.

The `regex` library, version 1: search, without regard to case unless told otherwise, look-around, back-references,
named groups, Unicode classes, inline flags. Two things are not as the library has them: `$` is the text's end, never
before a last newline, and case is folded one character to one, so that `ss` isn't `ß`: both as in the Rust dialect that
filters come from.
"""

from functools import lru_cache

import regex

from sluice.splitting.filters.dialect import MAX_LEVELS, Kind, tokens, too_deep_at
from sluice.splitting.filters.values import MAX_PATTERN_CHARACTERS

TIME_LIMIT_S = 0.05  # one search; a pattern that needs more backtracks without end, or nearly
MAX_COMPILED = 8_192  # patterns kept compiled

_EXACT = regex.VERSION1
_FLAGS = _EXACT | regex.IGNORECASE
_SIMPLE_CASE = "(?-f)"  # version 1 folds full case (one character to several) unless told otherwise


class PatternTimedOut(Exception):  # control flow between this module and the router, no error of Sluice's
    """A search exceeded its time limit: no match; its sessions are to be cancelled."""


class PatternFailed(PatternTimedOut):
    """A search couldn't be made: the pattern was checked, but perhaps by another version of the library."""


def searches(pattern: str, text: str, *, exact_case: bool = False, time_limit_s: float = TIME_LIMIT_S) -> bool:
    """Whether the pattern is found in the text. Raises `PatternTimedOut`, or `PatternFailed` where it can't be used."""
    try:
        return _compile(pattern, exact_case).search(text, timeout=time_limit_s, concurrent=False) is not None
    except TimeoutError as error:
        raise PatternTimedOut(pattern) from error
    except (MemoryError, regex.error) as error:
        raise PatternFailed(pattern) from error


def problem(pattern: str, *, exact_case: bool = False) -> str | None:
    """Why the pattern can't be used, or None where it can."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"is longer than {MAX_PATTERN_CHARACTERS} characters"
    at = too_deep_at(pattern)
    if at is not None:
        return f"doesn't compile: nests more than {MAX_LEVELS} groups and classes at position {at}"
    try:
        # As it was written first, so that the position in the error is the writer's.
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
    return regex.compile(_SIMPLE_CASE + with_true_ends(pattern), flags, cache_pattern=False)


def with_true_ends(pattern: str) -> str:
    r"""Write the pattern with `\Z` for each `$` that is the text's end: not in a class, not in multiline mode."""
    if "$" not in pattern:
        return pattern
    return "".join(r"\Z" if token.kind is Kind.END and not token.multiline else token.text for token in tokens(pattern))
