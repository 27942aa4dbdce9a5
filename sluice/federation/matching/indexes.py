"""Indexes of one exchange's bindings: what every type of exchange has, and those that need no more than a table. Pure.

A member is a bound queue's name, in the index as often as the queue is bound. There may be a hundred thousand keys,
most of them with one member: that is the name itself.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sluice.federation.matching.typed_values import Headers, StoredValue

MAX_KEY_CHARACTERS = 256
MAX_ARGUMENTS = 64

Key = Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]
Arguments = Annotated[Mapping[str, StoredValue], Meta(max_length=MAX_ARGUMENTS)]
BoundKeys = Mapping[Key, Arguments]  # of one queue at one exchange, with their arguments
Members = str | tuple[str, ...]
NO_MEMBERS: Members = ()


def add_member(members: Members, member: str) -> Members:
    """Add a member."""
    if isinstance(members, str):
        return members, member
    return (*members, member) if members else member


def remove_member(members: Members, member: str) -> Members:
    """Remove a member once. Raises `KeyError` if it is missing."""
    if members == member:
        return NO_MEMBERS
    if isinstance(members, str) or member not in members:
        raise KeyError(member)
    place = members.index(member)
    others = (*members[:place], *members[place + 1 :])
    return others[0] if len(others) == 1 else others


def collect_members(members: Members, found: set[str]) -> None:
    """Add the members to those that were found."""
    if isinstance(members, str):
        found.add(members)
    else:
        found.update(members)


def add_to_table(table: dict[Any, Members], key: Any, member: str) -> None:
    """Add a member under a key."""
    table[key] = add_member(table.get(key, NO_MEMBERS), member)


def remove_from_table(table: dict[Any, Members], key: Any, member: str) -> None:
    """Remove a member under a key, and the key with its last member. Raises `KeyError` if it is missing."""
    others = remove_member(table.get(key, NO_MEMBERS), member)
    if others == NO_MEMBERS:
        del table[key]
    else:
        table[key] = others


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a message that decide its routing."""

    exchange: str
    key: str
    headers: Headers = msgspec.field(default_factory=dict)


class BindingIndex:
    """The bindings of one exchange. Each type of exchange is a subclass, which says what decides, and finds queues.

    `takes_all` are the arguments of a binding that takes every message, by whatever key.
    """

    __slots__ = ()
    follows_keys: ClassVar[bool] = False
    has_patterns: ClassVar[bool] = False  # its keys are topic patterns
    follows_arguments: ClassVar[bool] = False
    match_all_arguments: ClassVar[Headers] = {}

    @classmethod
    def check(cls, arguments: Headers) -> None:
        """Check a binding's arguments. Raises `BadBinding` if they are invalid."""

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add bindings of a queue; as often as they are added, they have to be removed. Raises `BadBinding`."""
        raise NotImplementedError

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` where one isn't there."""
        raise NotImplementedError

    def matches(self, publication: Publication) -> set[str]:
        """Find the members of all bindings that match."""
        raise NotImplementedError


class DirectIndex(BindingIndex):
    """Takes messages whose key is the binding's, byte for byte."""

    __slots__ = ("_by_key",)
    follows_keys = True

    def __init__(self) -> None:
        self._by_key: dict[str, Members] = {}

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add the keys."""
        for key in keys:
            add_to_table(self._by_key, key, member)

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove the keys. Raises `KeyError` where one isn't there."""
        for key in keys:
            remove_from_table(self._by_key, key, member)

    def matches(self, publication: Publication) -> set[str]:
        """Find the members of the key."""
        members: set[str] = set()
        collect_members(self._by_key.get(publication.key, NO_MEMBERS), members)
        return members


class FanoutIndex(BindingIndex):
    """Takes every message."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: Counter[str] = Counter()  # of each queue

    def add(self, member: str, keys: BoundKeys) -> None:
        """Count the bindings."""
        if keys:
            self._bindings[member] += len(keys)

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Count the bindings no longer. Raises `KeyError` where the queue hasn't so many."""
        if self._bindings[member] < len(keys):
            raise KeyError(member)
        self._bindings[member] -= len(keys)
        if not self._bindings[member]:
            del self._bindings[member]

    def matches(self, publication: Publication) -> set[str]:  # noqa: ARG002 - to everyone, whatever it is
        """Find all members."""
        return set(self._bindings)
