r"""Regular expressions on attribute values: the dialect, compiled and searched. Pure.

The dialect is that of the `regex` library, version 1: search, by default in any case, look-around, back-references,
named groups, Unicode classes, inline flags. Two things differ from the library, as in Rust's dialect, in which
mirrord's filters are written: `$` is the text's end, never before a last newline, and case is folded character by
character, so that `ss` doesn't match `ß`.
"""

from functools import lru_cache

import regex

from sluice.splitting.filters.dialect import MAX_LEVELS, Kind, tokens, too_deep_at
from sluice.splitting.filters.values import MAX_PATTERN_CHARACTERS

TIME_LIMIT_S = 0.05  # seconds that one search may take; slower patterns backtrack almost endlessly
MAX_COMPILED = 8_192  # maximum number of compiled patterns in the cache

_EXACT = regex.VERSION1
_FLAGS = _EXACT | regex.IGNORECASE
_SIMPLE_CASE = "(?-f)"  # no full case folding (one character to several), version 1's default


class PatternTimedOut(Exception):  # control flow to the router, not a SluiceError
    """A search exceeded its time limit. It counts as no match, and its sessions should be cancelled."""


class PatternFailed(PatternTimedOut):
    """A pattern failed in a search, although it was checked before, perhaps by another version of the library."""


def matches(pattern: str, text: str, *, exact_case: bool = False, time_limit_s: float = TIME_LIMIT_S) -> bool:
    """Return whether the pattern is found in the text. Raises `PatternTimedOut`, or `PatternFailed` if invalid."""
    try:
        return _compile(pattern, exact_case).search(text, timeout=time_limit_s, concurrent=False) is not None
    except TimeoutError as error:
        raise PatternTimedOut(pattern) from error
    except (MemoryError, regex.error) as error:
        raise PatternFailed(pattern) from error


def problem(pattern: str, *, exact_case: bool = False) -> str | None:
    """Return why the pattern can't be used; None if it can."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return f"is longer than {MAX_PATTERN_CHARACTERS} characters"
    at = too_deep_at(pattern)
    if at is not None:
        return f"doesn't compile: nests more than {MAX_LEVELS} groups and classes at position {at}"
    try:
        # Compiled first as its author wrote it, so that the position in an error message is right.
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
    r"""Replace each `$` that means the text's end by `\Z`: not in a character class, and not in multiline mode."""
    if "$" not in pattern:
        return pattern
    return "".join(r"\Z" if token.kind is Kind.END and not token.multiline else token.text for token in tokens(pattern))
