"""Bindings to headers exchanges: conditions on headers, and an index of many bindings. Pure.

`x-match` is `all` (the default) or `any`. RabbitMQ's `all-with-x` and `any-with-x` mean the same, because `x-` headers
count in any case. Each other argument is a condition: a header must have the argument's value or, if the argument is
void, be present. Arguments named `qpid.*` are ignored. Without conditions, `all` matches every message and `any` none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any

import msgspec

from sluice.errors import BadBinding
from sluice.federation.matching.indexes import (
    NO_QUEUES,
    BindingIndex,
    BoundKeys,
    Publication,
    QueueNames,
    add_to_table,
    collect_queues,
    remove_from_table,
)
from sluice.federation.matching.typed_values import Headers, Identity, from_stored, identity

X_MATCH = "x-match"
WITH_X = "-with-x"
IGNORED_PREFIX = "qpid."


class MatchMode(StrEnum):
    """Whether all or any of a binding's conditions have to be met."""

    ALL = "all"
    ANY = "any"


class HeaderConditions(msgspec.Struct, frozen=True, kw_only=True):
    """A binding's conditions: the values that headers have to equal, and the names of headers that must be present."""

    match: MatchMode
    equal_values: Mapping[str, Identity]
    present_names: frozenset[str]

    @classmethod
    def from_arguments(cls, arguments: Headers) -> "HeaderConditions":
        """Parse a binding's arguments. Raises `BadBinding` if `x-match` is invalid."""
        conditions = {
            name: value for name, value in arguments.items() if name != X_MATCH and not name.startswith(IGNORED_PREFIX)
        }
        return cls(
            match=parse_match(arguments),
            equal_values={name: identity(value) for name, value in conditions.items() if value is not None},
            present_names=frozenset(name for name, value in conditions.items() if value is None),
        )


def parse_match(arguments: Headers) -> MatchMode:
    """Parse a binding's `x-match`. Raises `BadBinding` if it is invalid."""
    try:
        return MatchMode(str(arguments.get(X_MATCH, MatchMode.ALL)).removesuffix(WITH_X))
    except ValueError:
        raise BadBinding(f"{X_MATCH} must be all or any, not {arguments.get(X_MATCH)!r}") from None


_Names = tuple[tuple[str, ...], frozenset[str]]  # header names with values, sorted, and header names without
_Values = tuple[Any, ...]  # types and values in turn; a flat tuple takes a third of the memory
_Table = dict[_Values, QueueNames]


class HeadersIndex(BindingIndex):
    """Matches messages whose headers meet a binding's conditions.

    An `any` binding is stored under each of its conditions. The header names in an `all` binding are the binding's
    shape. Bindings of one shape share a table, with their values as keys. The table is stored under the rarest name of
    the shape. So a message costs one look-up for each shape whose rarest name is among its headers, however many
    bindings there are.
    """

    __slots__ = ("_any_equal", "_any_present", "_crowds", "_places", "_shapes", "_unconditional")
    follows_arguments = True
    match_all_arguments = {X_MATCH: MatchMode.ALL.value}  # noqa: RUF012 - the base says that it is the class's

    def __init__(self) -> None:
        self._any_equal: dict[_Values, QueueNames] = {}
        self._any_present: dict[str, QueueNames] = {}
        self._unconditional: dict[_Values, QueueNames] = {}  # queues of bindings without conditions
        self._shapes: dict[str, dict[_Names, _Table]] = {}
        self._places: dict[_Names, str] = {}  # the header name under which each shape is stored
        self._crowds: Counter[str] = Counter()  # number of shapes with each header name

    @classmethod
    def check(cls, arguments: Headers) -> None:
        """Check that the arguments have a valid `x-match`. Raises `BadBinding`."""
        parse_match(arguments)

    def add(self, queue: str, keys: BoundKeys) -> None:
        """Add bindings of a queue, by their conditions. Raises `BadBinding`."""
        for arguments in keys.values():
            for table, values in self._iter_tables(HeaderConditions.from_arguments(from_stored(arguments))):
                add_to_table(table, values, queue)

    def remove(self, queue: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` if a binding is missing."""
        for arguments in keys.values():
            conditions = HeaderConditions.from_arguments(from_stored(arguments))
            for table, values in self._iter_tables(conditions):
                remove_from_table(table, values, queue)
            shape = _get_shape(conditions)
            if shape in self._places and not self._find_or_add_table(shape):
                place = self._places.pop(shape)
                del self._shapes[place][shape]
                if not self._shapes[place]:
                    del self._shapes[place]
                self._crowds -= Counter((*shape[0], *shape[1]))

    def _iter_tables(self, conditions: HeaderConditions) -> Iterator[tuple[dict[Any, QueueNames], Any]]:
        """Yield the tables that store a binding, each with the binding's key in that table."""
        if conditions.match is MatchMode.ANY:
            for name, value in conditions.equal_values.items():
                yield self._any_equal, (name, *value)
            for name in conditions.present_names:
                yield self._any_present, name
        elif conditions.equal_values or conditions.present_names:
            shape = _get_shape(conditions)
            yield (
                self._find_or_add_table(shape),
                tuple(chain.from_iterable(conditions.equal_values[name] for name in shape[0])),
            )
        else:
            yield self._unconditional, ()

    def _find_or_add_table(self, shape: _Names) -> _Table:
        place = self._places.get(shape)
        if place is None:
            names = (*shape[0], *shape[1])
            place = self._places[shape] = min(names, key=lambda name: (self._crowds[name], name))
            self._crowds.update(names)
        return self._shapes.setdefault(place, {}).setdefault(shape, {})

    def find_queues(self, publication: Publication) -> set[str]:
        """Return the queues of all bindings that match the message."""
        matched_queues: set[str] = set()
        collect_queues(self._unconditional.get((), NO_QUEUES), matched_queues)
        values = {name: identity(value) for name, value in publication.headers.items()}
        for name, value in values.items():
            if (queues := self._any_equal.get((name, *value))) is not None:
                collect_queues(queues, matched_queues)
            if (queues := self._any_present.get(name)) is not None:
                collect_queues(queues, matched_queues)
            for shape, table in self._shapes.get(name, _NO_TABLES).items():
                if (queues := _find_queues(table, shape, values)) is not None:
                    collect_queues(queues, matched_queues)
        return matched_queues


_NO_TABLES: Mapping[_Names, _Table] = {}


def _get_shape(conditions: HeaderConditions) -> _Names:
    return tuple(sorted(conditions.equal_values)), conditions.present_names


def _find_queues(table: _Table, shape: _Names, values: Mapping[str, Identity]) -> QueueNames | None:
    """Return the queues for a message's values of a shape's headers; None if the message lacks a header."""
    equal, present = shape
    key: list[Any] = []
    for name in equal:
        value = values.get(name)
        if value is None:
            return None
        key += value
    return table.get(tuple(key)) if values.keys() >= present else None
