"""Indexes of one exchange's bindings: the base class, and the indexes of direct and fanout exchanges. Pure.

A member is a bound queue's name, and is in the index once per binding. An index may have 100,000 keys. Most keys have
only one member, which is stored as a plain string.
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
BoundKeys = Mapping[Key, Arguments]  # a queue's keys at one exchange, each with its arguments
Members = str | tuple[str, ...]
NO_MEMBERS: Members = ()


def add_member(members: Members, member: str) -> Members:
    """Return the members together with one more member."""
    if isinstance(members, str):
        return members, member
    return (*members, member) if members else member


def remove_member(members: Members, member: str) -> Members:
    """Return the members without one occurrence of `member`. Raises `KeyError` if `member` is missing."""
    if members == member:
        return NO_MEMBERS
    if isinstance(members, str) or member not in members:
        raise KeyError(member)
    place = members.index(member)
    others = (*members[:place], *members[place + 1 :])
    return others[0] if len(others) == 1 else others


def collect_members(members: Members, collected: set[str]) -> None:
    """Add all members to the set `collected`."""
    if isinstance(members, str):
        collected.add(members)
    else:
        collected.update(members)


def add_to_table(table: dict[Any, Members], key: Any, member: str) -> None:
    """Add a member under a key of the table."""
    table[key] = add_member(table.get(key, NO_MEMBERS), member)


def remove_from_table(table: dict[Any, Members], key: Any, member: str) -> None:
    """Remove a member under a key of the table. A key without members is removed, too. Raises `KeyError`."""
    others = remove_member(table.get(key, NO_MEMBERS), member)
    if others == NO_MEMBERS:
        del table[key]
    else:
        table[key] = others


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a message that decide how it is routed."""

    exchange: str
    key: str
    headers: Headers = msgspec.field(default_factory=dict)


class BindingIndex:
    """An index of one exchange's bindings. Each type of exchange has a subclass.

    `match_all_arguments` are the arguments of a binding that matches every message with any key.
    """

    __slots__ = ()
    follows_keys: ClassVar[bool] = False
    has_patterns: ClassVar[bool] = False  # keys are topic patterns
    follows_arguments: ClassVar[bool] = False
    match_all_arguments: ClassVar[Headers] = {}

    @classmethod
    def check(cls, arguments: Headers) -> None:
        """Check a binding's arguments. Raises `BadBinding` if they are invalid."""

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add bindings of a queue. A binding that is added twice has to be removed twice. Raises `BadBinding`."""
        raise NotImplementedError

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` if a binding is missing."""
        raise NotImplementedError

    def matches(self, publication: Publication) -> set[str]:
        """Return the queues of all bindings that match the message."""
        raise NotImplementedError


class DirectIndex(BindingIndex):
    """Matches messages whose key equals a binding's key, byte for byte."""

    __slots__ = ("_by_key",)
    follows_keys = True

    def __init__(self) -> None:
        self._by_key: dict[str, Members] = {}

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add a queue's keys."""
        for key in keys:
            add_to_table(self._by_key, key, member)

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove a queue's keys. Raises `KeyError` if a key is missing."""
        for key in keys:
            remove_from_table(self._by_key, key, member)

    def matches(self, publication: Publication) -> set[str]:
        """Return the queues that are bound by the message's key."""
        members: set[str] = set()
        collect_members(self._by_key.get(publication.key, NO_MEMBERS), members)
        return members


class FanoutIndex(BindingIndex):
    """The index of a fanout exchange, which matches every message with all bindings."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: Counter[str] = Counter()  # number of bindings by queue

    def add(self, member: str, keys: BoundKeys) -> None:
        """Add bindings of a queue. Only their number is stored."""
        if keys:
            self._bindings[member] += len(keys)

    def remove(self, member: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` if the queue has fewer bindings."""
        if self._bindings[member] < len(keys):
            raise KeyError(member)
        self._bindings[member] -= len(keys)
        if not self._bindings[member]:
            del self._bindings[member]

    def matches(self, publication: Publication) -> set[str]:  # noqa: ARG002 - to everyone, whatever it is
        """Return all bound queues, because every message matches."""
        return set(self._bindings)
