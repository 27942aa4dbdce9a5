"""Splits a pattern into tokens, with enough of the `regex` library's syntax (version 1) to find each `$`. Pure.

The library's own parser isn't a public interface, so Sluice has this parser; a property test compares the two parsers.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto

import msgspec

_GROUP = re.compile(
    r"\((?:\?(?:P?<(?![=!])[^>)]*>|<[=!]|[:=!>|]|(?P<flags>[A-Za-z0-9]*(?:-[A-Za-z]*)?)(?P<end>[:)]))?)?"
)
_COMMENT = re.compile(r"\(\?#(?:\\.|[^)\\])*\)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pPN]\{[^}]*\}|.)", re.DOTALL)
_QUANTIFIER = re.compile(r"(?:[?*+]|\{\d+(?:,\d*)?\}|\{,\d*\})[?+]?")
MAX_LEVELS = 50  # Groups and classes can be nested this deep; the library recurses about ten times per level.
_SET_OPERATORS = ("||", "~~", "&&", "--")


class Kind(Enum):
    """The kinds of tokens that the search for literals and `$` distinguishes."""

    LITERAL = auto()
    ESCAPE = auto()
    SET = auto()  # a whole character class such as [a-z]
    OPEN = auto()
    CLOSE = auto()
    OR = auto()
    QUANTIFIER = auto()
    START = auto()  # the anchor ^
    END = auto()  # the anchor $
    ANY = auto()  # the wildcard .
    FLAGS = auto()  # (?i) and other flags, which apply until the group ends
    SKIPPED = auto()  # comments, and white space in verbose mode


class Token(msgspec.Struct, frozen=True):
    """A token of a pattern. `multiline` and `verbose` are the modes that hold at the token."""

    kind: Kind
    text: str
    multiline: bool
    verbose: bool


_SINGLE = {")": Kind.CLOSE, "|": Kind.OR, "^": Kind.START, "$": Kind.END, ".": Kind.ANY}


def tokens(pattern: str) -> Iterator[Token]:
    """Yield the tokens of a valid pattern in order. The joined texts of the tokens are the pattern."""
    modes = [_Modes()]
    position = 0
    while position < len(pattern):
        kind, end = _next_token(pattern, position, verbose=modes[-1].verbose)
        text = pattern[position:end]
        yield Token(kind, text, modes[-1].multiline, modes[-1].verbose)
        if kind is Kind.FLAGS:
            modes[-1] = modes[-1].apply_flags(text[2:-1])
        elif kind is Kind.OPEN:
            match = _GROUP.fullmatch(text)
            modes.append(modes[-1].apply_flags((match["flags"] or "") if match else ""))
        elif kind is Kind.CLOSE and len(modes) > 1:
            modes.pop()
        position = end


class _Modes(msgspec.Struct, frozen=True):
    multiline: bool = False
    verbose: bool = False

    def apply_flags(self, flags: str) -> "_Modes":
        on, _, off = flags.partition("-")
        return _Modes(
            multiline=(self.multiline or "m" in on) and "m" not in off,
            verbose=(self.verbose or "x" in on) and "x" not in off,
        )


def _next_token(pattern: str, position: int, *, verbose: bool) -> tuple[Kind, int]:
    """Return the kind of the token that begins at `position`, and the token's end."""
    character = pattern[position]
    kind, end = _SINGLE.get(character, Kind.LITERAL), position + 1
    if verbose and character.isspace():
        kind = Kind.SKIPPED
    elif verbose and character == "#":
        line_end = pattern.find("\n", position)
        kind, end = Kind.SKIPPED, len(pattern) if line_end < 0 else line_end
    elif character == "\\":
        escape = _ESCAPE.match(pattern, position)
        kind, end = Kind.ESCAPE, escape.end() if escape else position + 1
    elif character == "[":
        kind, (end, _) = Kind.SET, _parse_class(pattern, position)
    elif character == "(":
        comment, group = _COMMENT.match(pattern, position), _GROUP.match(pattern, position)
        if comment:
            kind, end = Kind.SKIPPED, comment.end()
        elif group:  # `_GROUP` also matches a bare parenthesis.
            kind, end = Kind.FLAGS if group["end"] == ")" else Kind.OPEN, group.end()
    elif quantifier := _QUANTIFIER.match(pattern, position):
        kind, end = Kind.QUANTIFIER, quantifier.end()
    return kind, end


def _parse_class(pattern: str, position: int) -> tuple[int, int]:
    """Return the end of the character class that begins at `position`, and its number of nested levels.

    A `]` directly after the opening bracket is a member of the class, not its end.
    """
    depth, levels, first = 0, 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "[":
            depth += 1
            levels = max(levels, depth)
            first = True
            position += 2 if pattern.startswith("[^", position) else 1
            continue
        if character == "]" and not first:
            depth -= 1
            position += 1
            if not depth:
                break
            continue
        first = pattern.startswith(_SET_OPERATORS, position)
        if first:
            position += 2
        elif character == "\\":
            match = _ESCAPE.match(pattern, position)
            position = match.end() if match else position + 1
        else:
            position += 1
    return position, levels


def find_excess_depth(pattern: str) -> int | None:
    """Return the position at which a pattern nests more than `MAX_LEVELS` groups and classes, or None.

    The library itself refuses such patterns only if the caller's stack is exhausted.
    """
    position, depth = 0, 0
    for token in tokens(pattern):
        levels = depth
        if token.kind is Kind.OPEN:
            levels = depth = depth + 1
        elif token.kind is Kind.CLOSE:
            depth = max(depth - 1, 0)
        elif token.kind is Kind.SET:
            levels = depth + _parse_class(token.text, 0)[1]
        if levels > MAX_LEVELS:
            return position
        position += len(token.text)
    return None
