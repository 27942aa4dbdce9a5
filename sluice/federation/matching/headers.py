"""Headers bindings: which messages their arguments match, and an index over many of them. Pure.

`x-match` is `all` or `any`. Every other argument asks a header to have its value, or just to be there where it is void;
arguments named `qpid.*` are for other ends and ask nothing. `all` that asks nothing matches everything, `any` nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any

import msgspec

from sluice.errors import BadBinding
from sluice.federation.matching.indexes import (
    NOBODY,
    BindingIndex,
    BoundKeys,
    Members,
    Publication,
    gather,
    put,
    take,
)
from sluice.federation.matching.typed_values import Headers, Identity, TypedValue, identity, of_stored

X_MATCH = "x-match"
NOT_ASKED = "qpid."


class Match(StrEnum):
    """How many of its conditions a binding wants met."""

    ALL = "all"
    ANY = "any"


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a binding asks: headers that `equal` a value, headers that are `present`."""

    match: Match
    equal: Mapping[str, Identity]
    present: frozenset[str]

    @classmethod
    def of(cls, arguments: Headers) -> "Conditions":
        """Read a binding's arguments. Raises `BadBinding` where `x-match` is missing or another."""
        asked = {name: value for name, value in arguments.items() if name != X_MATCH and not name.startswith(NOT_ASKED)}
        return cls(
            match=match_of(arguments),
            equal={name: identity(value) for name, value in asked.items() if value is not None},
            present=frozenset(name for name, value in asked.items() if value is None),
        )


def match_of(arguments: Headers) -> Match:
    """Read a binding's `x-match`. Raises `BadBinding` where it is missing or another."""
    match = _MATCHES.get(arguments.get(X_MATCH))
    if match is None:
        raise BadBinding(f"{X_MATCH} must be all or any, not {arguments.get(X_MATCH)!r}")
    return match


_MATCHES: Mapping[TypedValue, Match] = {str(match): match for match in Match}

_Names = tuple[tuple[str, ...], frozenset[str]]  # that an `all` binding asks for: equal, in order, and present
_Asked = tuple[Any, ...]  # types and values, in turn: in one tuple they take a third of the memory
_Table = dict[_Asked, Members]


class HeadersIndex(BindingIndex):
    """Takes messages whose headers meet a binding's conditions.

    `any` bindings stand under each of their conditions. `all` bindings of one shape, the names that they ask for, stand
    in one table under their values taken together, and a shape stands under the rarest of its names: so a message costs
    a look-up for each shape whose rarest name it has, however many bindings have that shape.
    """

    __slots__ = ("_any_equal", "_any_present", "_crowds", "_places", "_shapes", "_unconditional")
    follows_arguments = True
    takes_all = {X_MATCH: Match.ALL.value}  # noqa: RUF012 - the base says that it is the class's

    def __init__(self) -> None:
        self._any_equal: dict[_Asked, Members] = {}
        self._any_present: dict[str, Members] = {}
        self._unconditional: dict[_Asked, Members] = {}  # under one empty key
        self._shapes: dict[str, dict[_Names, _Table]] = {}
        self._places: dict[_Names, str] = {}  # the name that a shape stands under
        self._crowds: Counter[str] = Counter()  # how many shapes ask for a name

    @classmethod
    def check(cls, arguments: Headers) -> None:
        """Check that `x-match` is there. Raises `BadBinding`."""
        match_of(arguments)

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add the bindings' conditions. Raises `BadBinding`."""
        for arguments in keys.values():
            for table, asked in self._tables(Conditions.of(of_stored(arguments))):
                put(table, asked, member)

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove the bindings' conditions. Raises `KeyError` where one isn't there."""
        for arguments in keys.values():
            conditions = Conditions.of(of_stored(arguments))
            for table, asked in self._tables(conditions):
                take(table, asked, member)
            shape = _shape(conditions)
            if shape in self._places and not self._table(shape):
                self._forget(shape)

    def _tables(self, conditions: Conditions) -> Iterator[tuple[dict[Any, Members], Any]]:
        """Find where a binding stands: the tables, and its key in each."""
        if conditions.match is Match.ANY:
            for name, value in conditions.equal.items():
                yield self._any_equal, (name, *value)
            for name in conditions.present:
                yield self._any_present, name
        elif conditions.equal or conditions.present:
            shape = _shape(conditions)
            yield self._table(shape), tuple(chain.from_iterable(conditions.equal[name] for name in shape[0]))
        else:
            yield self._unconditional, ()

    def _table(self, shape: _Names) -> _Table:
        place = self._places.get(shape)
        if place is None:
            names = (*shape[0], *shape[1])
            place = self._places[shape] = min(names, key=lambda name: (self._crowds[name], name))
            self._crowds.update(names)
        return self._shapes.setdefault(place, {}).setdefault(shape, {})

    def _forget(self, shape: _Names) -> None:
        place = self._places.pop(shape)
        del self._shapes[place][shape]
        if not self._shapes[place]:
            del self._shapes[place]
        self._crowds -= Counter((*shape[0], *shape[1]))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, and nothing left of what was."""
        tables = (self._any_equal, self._any_present, self._unconditional, self._shapes, self._places, self._crowds)
        return not any(tables)

    def matches(self, publication: Publication) -> set[str]:
        """Find the members of all bindings that match."""
        found: set[str] = set()
        gather(self._unconditional.get((), NOBODY), found)
        values = {name: identity(value) for name, value in publication.headers.items()}
        for name, value in values.items():
            if (members := self._any_equal.get((name, *value))) is not None:
                gather(members, found)
            if (members := self._any_present.get(name)) is not None:
                gather(members, found)
            for shape, table in self._shapes.get(name, _NO_TABLES).items():
                if (members := _found_in(table, shape, values)) is not None:
                    gather(members, found)
        return found


_NO_TABLES: Mapping[_Names, _Table] = {}


def _shape(conditions: Conditions) -> _Names:
    return tuple(sorted(conditions.equal)), conditions.present


def _found_in(table: _Table, shape: _Names, values: Mapping[str, Identity]) -> Members | None:
    """Look the values up that a shape asks for; None where one is missing."""
    equal, present = shape
    asked: list[Any] = []
    for name in equal:
        value = values.get(name)
        if value is None:
            return None
        asked += value
    return table.get(tuple(asked)) if values.keys() >= present else None
