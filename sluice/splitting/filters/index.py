r"""Indexes filters by the literals in their patterns, to find those that a message can match. Pure.

Each filter is indexed under one of its conditions: an attribute must equal a literal, contain a literal, or merely
exist. Only filters whose indexed condition the message meets are evaluated. Literals are extracted from the most common
forms of patterns (`^alice$`, `^(alice|bob)$`, `.*session=alice(,|$)`); for any other pattern, the attribute must merely
exist. Patterns on lines are indexed under a reserved name, which no attribute can have.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.splitting.filters.texts import FilterInput, fold_name
from sluice.splitting.filters.values import Filter

_Condition = Sequence[
    tuple[str, "RequiredLiterals"]
]  # A condition lists alternatives, of which one must be met: an attribute's name, and literals that its text needs.
LINES = ""  # Patterns on lines are indexed under this name, which no attribute has.

# These patterns have possessive quantifiers, which prevent backtracking, so that each text is read in one pass.
_LITERAL = r"(?:[A-Za-z0-9_ :/@,=~!'\"%&;<>`#-]|\\[!-/:-@\[-`{-~])++"
_OPAQUE = r"\.[*+]?|\\[dDwWsSbB][*+]?|\((?:\?:|(?!\?))[^()\[\]\\]*+\)[*+?]?"
_WHOLE = re.compile(rf"\^(?:({_LITERAL})|\((?:\?:)?({_LITERAL}(?:\|{_LITERAL})*+)\))\$")
_HOLDING = re.compile(rf"\^?(?:{_LITERAL}|{_OPAQUE})*+\$?")
_PIECE = re.compile(rf"(?P<literal>{_LITERAL})|{_OPAQUE}")
_TURKISH = str.maketrans("\u0130\u0131", "ii")  # The dialect equates these letters with i; str.casefold doesn't.


class RequiredLiterals(msgspec.Struct, frozen=True):
    """A condition on a case-folded text: it equals (`is_whole`) or contains one of the literals, which may be empty."""

    literals: tuple[str, ...] = ("",)
    is_whole: bool = False


def fold(text: str) -> str:
    """Fold a text's case like the literals: characters that the dialect equates with an ASCII character become it."""
    return text.lower() if text.isascii() else text.translate(_TURKISH).casefold()


def derive_required_literals(pattern: str) -> RequiredLiterals:
    """Derive the literals that a text needs for the pattern to be found. A text with these literals needn't match."""
    if whole := _WHOLE.fullmatch(pattern):
        return RequiredLiterals(tuple(map(_unescape, re.findall(_LITERAL, whole[1] or whole[2]))), is_whole=True)
    if not _HOLDING.fullmatch(pattern):
        return RequiredLiterals()
    literals = [_unescape(piece["literal"] or "") for piece in _PIECE.finditer(pattern)]
    return RequiredLiterals((max(literals, key=len, default=""),))


def _unescape(literal: str) -> str:
    return re.sub(r"\\(.)", r"\1", literal).lower()


@dataclass(slots=True)
class _IndexedFilters:
    """The filters indexed under one attribute's name."""

    equal: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    containing: list[tuple[str, int]] = field(default_factory=list)


class Index(msgspec.Struct, frozen=True):
    """Indexes filters by required literals. A filter's number is its position in the sequence given to `build`."""

    _by_name: Mapping[str, _IndexedFilters]
    _unconditional: Sequence[int]  # numbers of filters that have only a jq program

    @classmethod
    def build(cls, filters: Sequence[Filter]) -> "Index":
        """Build the index. This happens once for each version of the sessions."""
        # A matching message meets all conditions of a filter, so the filter can be indexed under any one of them.
        conditions: list[Sequence[_Condition]] = [
            [
                *([(fold_name(name), derive_required_literals(pattern))] for name, pattern in filter_.attributes),
                *([(LINES, derive_required_literals(pattern)) for pattern in any_of] for any_of in filter_.lines),
            ]
            for filter_ in filters
        ]
        crowds = Counter(one for of_filter in conditions for condition in of_filter for one in condition)

        def rank_condition(condition: _Condition) -> tuple[int, int]:
            """Rank conditions: the best are shared by the fewest filters; among equals, long literals are better."""
            shortest = min(len(literal) for _, need in condition for literal in need.literals)
            return -max(crowds[one] for one in condition), shortest

        by_name: defaultdict[str, _IndexedFilters] = defaultdict(_IndexedFilters)
        for number, of_filter in enumerate(conditions):
            for name, need in max(of_filter, key=rank_condition, default=()):
                for literal in need.literals:
                    if need.is_whole:
                        by_name[name].equal[literal].append(number)
                    else:
                        by_name[name].containing.append((literal, number))
        unconditional = [number for number, of_filter in enumerate(conditions) if not of_filter]
        return cls(by_name, unconditional)

    def find_candidates(self, filter_input: FilterInput) -> list[int]:
        """List the numbers of the filters that this message may match, in order. It can't match any other filter."""
        candidates = set(self._unconditional)
        for name, entries in self._by_name.items():
            for text in filter_input.lines() if name == LINES else filter_input.texts.get(name, ()):
                folded = fold(text)
                candidates.update(entries.equal.get(folded, ()))
                candidates.update(number for literal, number in entries.containing if literal in folded)
        return sorted(candidates)
