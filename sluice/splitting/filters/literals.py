r"""What a pattern requires of a text, told from the pattern alone, so that most patterns needn't be searched for. Pure.

Always on the safe side: a text that the pattern is found in meets its need, never the other way round; where a pattern
is too clever to be understood, it needs nothing. Only ASCII literals count: `fold` brings all that the dialect takes
for equal to an ASCII letter (the Kelvin sign, the long s, the Turkish i) onto that letter.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import msgspec

from sluice.splitting.filters.dialect import Kind, Token, tokens, too_deep_at

MAX_LITERALS = 32  # of one need: beyond that, alternatives aren't worth being told apart
MAX_RUNS = 4  # of one pattern: a filter needs one that tells it from others
MAX_REMEMBERED = 8_192  # patterns whose need is kept

_TURKISH = str.maketrans("\u0130\u0131", "ii")  # the dialect takes them for i and I; str.casefold doesn't
_PLAIN_OPENINGS = re.compile(r"\((?:\?(?:P?<[^=!][^>]*>|:))?")
_OPAQUE_OPENINGS = re.compile(r"\(\?(?:<?[=!]|>)")
_HARMLESS_FLAGS = re.compile(r"\(\?[ims]*(?:-[ims]*)?\)")
_PLAIN_ESCAPES = frozenset([r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\b", r"\B", r"\A", r"\Z", r"\n", r"\r", r"\t"])
_OPTIONAL = re.compile(r"[?*]|\{0|\{,")
_EMPTY = frozenset({""})


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What a folded text must be (`equal`: one of them), or else hold (`within`: one of each set)."""

    equal: frozenset[str] | None = None
    within: tuple[frozenset[str], ...] = ()


def fold(text: str) -> str:
    """Write the text as needs are: what the dialect takes for equal to an ASCII character becomes that one."""
    return text.lower() if text.isascii() else text.translate(_TURKISH).casefold()


@lru_cache(MAX_REMEMBERED)
def need_of(pattern: str) -> Need:
    """Tell the need of a pattern that compiles."""
    if too_deep_at(pattern) is not None:
        return Need()
    try:
        branches = list(_branches(_Reader(tokens(pattern))))
    except _TooClever:
        return Need()
    if all(branch.anchored for branch in branches):
        equal = _union(branch.exact for branch in branches)
        if equal is not None:
            return Need(equal=equal)
    return Need(within=_required_of_all(branches))


class _TooClever(Exception):
    """A construct that may change the meaning of what stands around it."""


class _Reader:
    """Tokens, one ahead."""

    def __init__(self, stream: Iterator[Token]) -> None:
        self._stream = stream
        self.token = next(stream, None)

    def take(self) -> Token:
        token = self.token
        if token is None:
            raise _TooClever
        self.token = next(self._stream, None)
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a piece of a pattern matches: exactly one of `exact`, or else something that holds one of each of `held`."""

    exact: frozenset[str] | None = None
    held: tuple[frozenset[str], ...] = ()

    def required(self) -> tuple[frozenset[str], ...]:
        """List what any match holds one of each of; sets with nothing in one of their literals say nothing."""
        return tuple(literals for literals in (self.exact, *self.held) if literals and "" not in literals)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch(_Part):
    """One alternative; `anchored` where it starts with `^` and ends with `$`."""

    anchored: bool = False


def _worth(literals: frozenset[str]) -> tuple[int, int]:
    return min(map(len, literals)), -len(literals)


def _required_of_all(branches: Sequence[_Branch]) -> tuple[frozenset[str], ...]:
    """List what is held whichever branch matches: all that a single one requires, or the best of each together."""
    if len(branches) == 1:
        return branches[0].required()
    best = _union(max(branch.required(), key=_worth, default=None) for branch in branches)
    return () if best is None else (best,)


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    union: set[str] = set()
    for literals in sets:
        if literals is None:
            return None
        union |= literals
    return frozenset(union) if len(union) <= MAX_LITERALS else None


_START = _Part()
_END = _Part()


def _branches(reader: _Reader) -> Iterator[_Branch]:
    """Yield the alternatives up to the end of the group or of the pattern, which is left in the reader."""
    while True:
        parts = list(_parts(reader))
        started = bool(parts) and parts[0] is _START
        ended = bool(parts) and parts[-1] is _END
        inner = parts[1 if started else 0 : -1 if ended else None]
        yield replace(_sequence(inner), anchored=started and ended and len(parts) > 1)
        if reader.token is None or reader.token.kind is not Kind.OR:
            return
        reader.take()


def _sequence(parts: list[_Part]) -> _Branch:
    """Neighbours that are exact are joined; where that isn't all, each run of them is held."""
    run, held, whole = _EMPTY, set[frozenset[str]](), True
    for part in parts:
        if part.exact is not None and len(run) * len(part.exact) <= MAX_LITERALS:
            run = frozenset(map("".join, product(run, part.exact)))
            continue
        whole = False
        held |= {run, *part.held}
        # Where the joint set got too large, this part starts the next run.
        run = part.exact if part.exact is not None else _EMPTY
    if whole:
        return _Branch(exact=run)
    telling = [literals for literals in held | {run} if "" not in literals]
    telling.sort(key=lambda literals: (_worth(literals), sorted(literals)), reverse=True)
    return _Branch(held=tuple(telling[:MAX_RUNS]))


def _parts(reader: _Reader) -> Iterator[_Part]:
    while reader.token is not None and reader.token.kind not in {Kind.OR, Kind.CLOSE}:
        part = _part(reader)
        if part is None:
            continue
        if reader.token is not None and reader.token.kind is Kind.QUANTIFIER:
            part = _Part() if _OPTIONAL.match(reader.take().text) else _Part(held=part.required())
        yield part


def _part(reader: _Reader) -> _Part | None:
    token = reader.take()
    if token.verbose or token.text == "{":  # a brace that is no quantifier may be a fuzzy constraint
        raise _TooClever
    part: _Part | None = _Part()
    match token.kind:
        case Kind.LITERAL | Kind.ESCAPE:
            part = _character(token.text)
        case Kind.SET | Kind.ANY:
            pass
        case Kind.START | Kind.END:
            if not token.multiline:
                part = _START if token.kind is Kind.START else _END
        case Kind.OPEN:
            part = _group(token, reader)
        case Kind.FLAGS if _HARMLESS_FLAGS.fullmatch(token.text):
            part = None
        case Kind.SKIPPED:
            part = None
        case _:
            raise _TooClever
    return part


def _character(text: str) -> _Part:
    if text in _PLAIN_ESCAPES or not text.isascii():
        return _Part()
    if not text.startswith("\\"):
        return _Part(exact=frozenset({text.lower()}))
    if text[1].isalnum():  # a class or a code, of one or more characters
        raise _TooClever
    return _Part(exact=frozenset({text[1:]}))


def _group(opening: Token, reader: _Reader) -> _Part:
    plain = _PLAIN_OPENINGS.fullmatch(opening.text)
    if not plain and not _OPAQUE_OPENINGS.fullmatch(opening.text):
        raise _TooClever
    branches = list(_branches(reader))
    reader.take()  # the closing parenthesis
    if not plain:
        return _Part()
    # Anchors at a branch's ends are left out: they consume nothing, so what the group consumes is still this.
    return _Part(
        exact=_union(branch.exact for branch in branches),
        held=_required_of_all(branches),
    )
