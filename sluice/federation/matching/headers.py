"""Headers bindings: which messages their arguments match, and an index over many of them. Pure.

`x-match` is `all` or `any`. Every other argument asks a header to have its value, or just to be there where it is void;
arguments named `qpid.*` are for other ends and ask nothing. `all` that asks nothing matches everything, `any` nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sluice.errors import BadBinding
from sluice.federation.matching.typed_values import Headers, Identity, TypedValue, identity

X_MATCH = "x-match"
NOT_ASKED = "qpid."


class Match(StrEnum):
    """How many of its conditions a binding wants met."""

    ALL = "all"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
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


class _Shape(NamedTuple):
    """The names that an `all` binding asks for, without the values."""

    equal: tuple[str, ...]
    present: frozenset[str]

    @property
    def names(self) -> Iterable[str]:
        return (*self.equal, *self.present)


_Values = tuple[Identity, ...]


class HeadersIndex:
    """Bindings' conditions with the members (numbers) that they stand for.

    `any` bindings stand under each of their conditions. `all` bindings of one shape stand in one table under their
    values taken together, and a shape stands under its rarest name: so a message costs a look-up for each shape whose
    rarest name it has, however many bindings have that shape.
    """

    __slots__ = ("_any_equal", "_any_present", "_shapes", "_unconditional")

    def __init__(self, bindings: Iterable[tuple[Conditions, int]]) -> None:
        self._any_equal: defaultdict[tuple[str, Identity], list[int]] = defaultdict(list)
        self._any_present: defaultdict[str, list[int]] = defaultdict(list)
        self._unconditional: list[int] = []
        tables: defaultdict[_Shape, defaultdict[_Values, list[int]]] = defaultdict(lambda: defaultdict(list))
        for conditions, member in bindings:
            if conditions.match is Match.ANY:
                for condition in conditions.equal.items():
                    self._any_equal[condition].append(member)
                for name in conditions.present:
                    self._any_present[name].append(member)
            elif conditions.equal or conditions.present:
                names = tuple(sorted(conditions.equal))
                values = tuple(conditions.equal[name] for name in names)
                tables[_Shape(names, conditions.present)][values].append(member)
            else:
                self._unconditional.append(member)
        self._shapes = _by_rarest_name(tables)

    def matches(self, headers: Headers) -> set[int]:
        """Find the members of all bindings that match."""
        found = set(self._unconditional)
        values = {name: identity(value) for name, value in headers.items()}
        for condition in values.items():
            name = condition[0]
            found.update(self._any_equal.get(condition, ()))
            found.update(self._any_present.get(name, ()))
            for shape, table in self._shapes.get(name, ()):
                if shape.present <= values.keys() and all(asked in values for asked in shape.equal):
                    found.update(table.get(tuple(values[asked] for asked in shape.equal), ()))
        return found


_Tables = Mapping[_Shape, Mapping[_Values, list[int]]]


def _by_rarest_name(tables: _Tables) -> dict[str, list[tuple[_Shape, Mapping[_Values, list[int]]]]]:
    crowds = Counter(name for shape in tables for name in shape.names)
    found: dict[str, list[tuple[_Shape, Mapping[_Values, list[int]]]]] = {}
    for shape, table in tables.items():
        rarest = min(shape.names, key=lambda name: (crowds[name], name))
        found.setdefault(rarest, []).append((shape, table))
    return found
