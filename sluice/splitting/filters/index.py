"""Which filters a message can match at all, found without a search: an index over what their patterns need. Pure.

Each filter stands in the index under one condition of its own, the most telling one: an attribute that must be one of
some literals, or hold one of them, or just be there. A message's attributes lead to the filters whose condition it
meets; only those are evaluated. So the cost of a message follows the filters that it nearly matches, not the number of
sessions. Patterns on lines stand under a name of their own, which no attribute has.

A literal within a text is found by a window: a stretch of the literal, of one of few lengths, looked up for each place
of the text.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from sluice.splitting.filters.literals import fold, need_of
from sluice.splitting.filters.texts import Sight, fold_name
from sluice.splitting.filters.values import Filter

LINES = ""  # the name under which patterns on lines stand
WINDOWS = (8, 4, 2, 1)  # characters
PLACES_A_WINDOW = 2  # a text with as many places for each window of a table is searched for the windows


class _Key(NamedTuple):
    """A place in the index: `window` 0 is a whole text; `text` None is any text."""

    name: str
    window: int
    text: str | None


class _Choice(NamedTuple):
    """A literal, and the keys of which it can stand under any one."""

    literal: str
    keys: Sequence[_Key]


class _Place(NamedTuple):
    """A literal under the key that was chosen."""

    key: _Key
    literal: str


_Option = Sequence[_Choice]  # one condition of a filter: the literals any of which would do


@dataclass(slots=True)
class _Entries:
    """The filters that stand under one attribute's name."""

    present: list[int] = field(default_factory=list)
    equal: dict[str, list[int]] = field(default_factory=dict)
    windows: dict[int, dict[str, list[tuple[str, int]]]] = field(default_factory=dict)  # with the literal it is part of

    def add(self, place: _Place, number: int) -> None:
        key, literal = place
        if key.text is None:
            self.present.append(number)
        elif key.window:
            self.windows.setdefault(key.window, {}).setdefault(key.text, []).append((literal, number))
        else:
            self.equal.setdefault(key.text, []).append(number)

    def met_by(self, text: str) -> Iterator[Iterable[int]]:
        yield self.present
        if not self.equal and not self.windows:
            return
        folded = fold(text)
        yield self.equal.get(folded, ())
        for length, table in self.windows.items():
            places = len(folded) - length + 1
            # All windows, where they are few, as their literals are looked for anyway.
            held: Iterable[str] = table
            if PLACES_A_WINDOW * len(table) > places:
                held = {folded[at : at + length] for at in range(places)} & table.keys()
            yield [number for window in held for literal, number in table[window] if literal in folded]


class Index(msgspec.Struct, frozen=True):
    """Filters by what they need. Numbers are positions in the sequence that it was built from."""

    _by_name: Mapping[str, _Entries]
    _unconditional: tuple[int, ...]  # filters without patterns: jq alone

    @classmethod
    def of(cls, filters: Sequence[Filter]) -> "Index":
        """Build the index: once for each version of the sessions."""
        options = [list(_options(filter_)) for filter_ in filters]
        crowds = Counter(
            key
            for of_filter in options
            for option in of_filter
            for key in {key for choice in option for key in choice.keys}
        )
        by_name: defaultdict[str, _Entries] = defaultdict(_Entries)
        for number, of_filter in enumerate(options):
            for place in _most_telling(of_filter, crowds):
                by_name[place.key.name].add(place, number)
        unconditional = tuple(number for number, of_filter in enumerate(options) if not of_filter)
        return cls(dict(by_name), unconditional)

    def candidates(self, sight: Sight) -> list[int]:
        """List the filters that this message can match, in order, each once; it can't match any other."""
        found = set(self._unconditional)
        for name, values in sight.texts.items():
            entries = self._by_name.get(name)
            if entries is not None:
                for value in values:
                    found.update(*entries.met_by(value))
        of_lines = self._by_name.get(LINES)
        if of_lines is not None:
            for line in sight.lines():
                found.update(*of_lines.met_by(line))
        return sorted(found)


def _options(filter_: Filter) -> Iterator[_Option]:
    """List the filter's conditions: a message that matches meets them all, so it may stand under any one."""
    for attribute, pattern in filter_.attributes:
        yield from _options_of(fold_name(attribute), pattern)
    for any_of in filter_.lines:
        options = [list(_options_of(LINES, pattern)) for pattern in any_of]
        if len(options) == 1:
            yield from options[0]
        else:
            # One condition of each pattern: the first literals are the longest, and presence comes before them.
            yield [choice for of_pattern in options for choice in of_pattern[:2][-1]]


def _options_of(name: str, pattern: str) -> Iterator[_Option]:
    need = need_of(pattern)
    if need.equal is not None:
        yield [_Choice(literal, [_Key(name, 0, literal)]) for literal in need.equal]
        return
    yield [_Choice("", [_Key(name, 0, None)])]
    for literals in need.within:
        yield [_Choice(literal, _windows(name, literal)) for literal in literals]


def _windows(name: str, literal: str) -> list[_Key]:
    length = next(length for length in WINDOWS if length <= len(literal))
    return [_Key(name, length, literal[at : at + length]) for at in range(len(literal) - length + 1)]


def _most_telling(options: list[_Option], crowds: Counter[_Key]) -> Iterable[_Place]:
    """Choose the condition whose keys lead to the fewest filters; of equals, one that asks for more than presence."""
    chosen = [
        [_Place(min(choice.keys, key=lambda key: (crowds[key], key)), choice.literal) for choice in option]
        for option in options
    ]
    return min(chosen, key=lambda places: max((crowds[at.key], at.key.text is None) for at in places), default=())
