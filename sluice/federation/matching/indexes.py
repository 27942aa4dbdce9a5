"""Indexes of one exchange's bindings: the base class, and the indexes of direct and fanout exchanges. Pure.

A queue is a bound queue's name, and is in the index once per binding. An index may have 100,000 keys. Most keys have
only one queue, which is stored as a plain string.
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
QueueNames = str | tuple[str, ...]
NO_QUEUES: QueueNames = ()


def add_queue(queues: QueueNames, queue: str) -> QueueNames:
    """Return the queues together with one more queue."""
    if isinstance(queues, str):
        return queues, queue
    return (*queues, queue) if queues else queue


def remove_queue(queues: QueueNames, queue: str) -> QueueNames:
    """Return the queues without one occurrence of `queue`. Raises `KeyError` if `queue` is missing."""
    if queues == queue:
        return NO_QUEUES
    if isinstance(queues, str) or queue not in queues:
        raise KeyError(queue)
    position = queues.index(queue)
    others = (*queues[:position], *queues[position + 1 :])
    return others[0] if len(others) == 1 else others


def collect_queues(queues: QueueNames, collected: set[str]) -> None:
    """Add all queues to the set `collected`."""
    if isinstance(queues, str):
        collected.add(queues)
    else:
        collected.update(queues)


def add_to_table(table: dict[Any, QueueNames], key: Any, queue: str) -> None:
    """Add a queue under a key of the table."""
    table[key] = add_queue(table.get(key, NO_QUEUES), queue)


def remove_from_table(table: dict[Any, QueueNames], key: Any, queue: str) -> None:
    """Remove a queue under a key of the table. A key without queues is removed, too. Raises `KeyError`."""
    others = remove_queue(table.get(key, NO_QUEUES), queue)
    if others == NO_QUEUES:
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

    A binding with the arguments `match_all_arguments` matches every message, whatever the binding's key.
    """

    __slots__ = ()
    follows_keys: ClassVar[bool] = False
    has_patterns: ClassVar[bool] = False  # keys are topic patterns
    follows_arguments: ClassVar[bool] = False
    match_all_arguments: ClassVar[Headers] = {}

    @classmethod
    def check(cls, arguments: Headers) -> None:
        """Check a binding's arguments. Raises `BadBinding` if they are invalid."""

    def add(self, queue: str, keys: BoundKeys) -> None:
        """Add bindings of a queue. A binding that is added twice has to be removed twice. Raises `BadBinding`."""
        raise NotImplementedError

    def remove(self, queue: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` if a binding is missing."""
        raise NotImplementedError

    def find_queues(self, publication: Publication) -> set[str]:
        """Return the queues of all bindings that match the message."""
        raise NotImplementedError


class DirectIndex(BindingIndex):
    """Matches messages whose key equals a binding's key, byte for byte."""

    __slots__ = ("_by_key",)
    follows_keys = True

    def __init__(self) -> None:
        self._by_key: dict[str, QueueNames] = {}

    def add(self, queue: str, keys: BoundKeys) -> None:
        """Add a queue's keys."""
        for key in keys:
            add_to_table(self._by_key, key, queue)

    def remove(self, queue: str, keys: BoundKeys) -> None:
        """Remove a queue's keys. Raises `KeyError` if a key is missing."""
        for key in keys:
            remove_from_table(self._by_key, key, queue)

    def find_queues(self, publication: Publication) -> set[str]:
        """Return the queues that are bound by the message's key."""
        queues: set[str] = set()
        collect_queues(self._by_key.get(publication.key, NO_QUEUES), queues)
        return queues


class FanoutIndex(BindingIndex):
    """The index of a fanout exchange, which matches every message with all bindings."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: Counter[str] = Counter()  # number of bindings by queue

    def add(self, queue: str, keys: BoundKeys) -> None:
        """Add bindings of a queue. Only their number is stored."""
        if keys:
            self._bindings[queue] += len(keys)

    def remove(self, queue: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue. Raises `KeyError` if the queue has fewer bindings."""
        if self._bindings[queue] < len(keys):
            raise KeyError(queue)
        self._bindings[queue] -= len(keys)
        if not self._bindings[queue]:
            del self._bindings[queue]

    def find_queues(self, publication: Publication) -> set[str]:  # noqa: ARG002 - to everyone, whatever it is
        """Return all bound queues, because every message matches."""
        return set(self._bindings)
