"""The routing table: a site's bindings, compiled for many messages. Pure.

It is made of a snapshot once, and takes in what changes; what is stored is `bindings`' and `changes`'.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from sluice.errors import BadBinding, UnknownExchange
from sluice.federation.matching.bindings import (
    Bindings,
    BoundKeys,
    Destination,
    Short,
    ShortDestinations,
    known,
    parts_of,
)
from sluice.federation.matching.changes import BindingsChange
from sluice.federation.matching.exchanges import Exchange, ExchangeType, way
from sluice.federation.matching.headers import Conditions, HeadersIndex
from sluice.federation.matching.members import NOBODY, Members, joined, left
from sluice.federation.matching.topics import TopicIndex
from sluice.federation.matching.typed_values import Headers, of_stored

Destinations = tuple[Destination, ...]
NOWHERE: Destinations = ()
NOBODY_THERE = ""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """What of a message decides where it goes."""

    exchange: str
    key: str
    headers: Headers = msgspec.field(default_factory=dict)


class RoutingTable:
    """Where one site's messages go: a `Replica`, changed in place. Queues have numbers, in the order they came in."""

    __slots__ = ("_exchanges", "_line", "_matchers", "_numbers", "_ways", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Compile all of the bindings. Raises `BadBinding` for what refers to what isn't there."""
        self.version = bindings.version
        self._numbers: dict[str, int] = {}  # by queue
        self._line = Line()
        self._exchanges: dict[str, Exchange] = {}
        self._matchers: dict[str, _Matcher] = {}
        self._ways: dict[str, tuple[_Matcher, ...]] = {}
        self.apply(BindingsChange(exchanges=bindings.exchanges, queues=bindings.queues, bound=bindings.bound))

    def route(self, publication: Publication) -> Destinations:
        """Find the queues that get a copy, each once; none where neither the exchange nor an alternate has a match.

        Whether a bridge's queue may have it is the bridge's `crossing` to say: a message that is held back there counts
        as routed, and goes to no alternate. Raises `UnknownExchange`.
        """
        matchers = self._ways.get(publication.exchange)
        if matchers is None:
            raise UnknownExchange(publication.exchange)
        for matcher in matchers:
            found = matcher.find(publication)
            if found:
                return found
        return NOWHERE

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        for each in change.queues:
            self._know(each)
        if change.exchanges:
            self._add_exchanges(change.exchanges)
        for exchange, queue, keys in parts_of(change.unbound):
            self._unbind(exchange, queue, keys)
        for exchange, queue, keys in parts_of(change.bound):
            self._bind(exchange, queue, keys)
        for queue in change.forgotten:
            self._line.forget(self._numbers.pop(queue, None))
        for name in change.gone_exchanges:
            self._exchanges.pop(name, None)
            self._matchers.pop(name, None)
        if change.gone_exchanges:
            self._find_ways()

    def _know(self, destination: Destination) -> None:
        self._numbers[destination.queue] = self._line.know(self._numbers.get(destination.queue), destination)

    def _add_exchanges(self, exchanges: tuple[Exchange, ...]) -> None:
        for each in exchanges:
            self._exchanges[each.name] = each
            self._matchers.setdefault(each.name, _MATCHERS[each.type](self._line))
        self._find_ways()

    def _find_ways(self) -> None:
        ways = {name: way(name, self._exchanges) for name in self._exchanges}
        self._ways = {name: tuple(self._matchers[stop] for stop in stops) for name, stops in ways.items()}

    def _bind(self, exchange: str, queue: str, keys: BoundKeys) -> None:
        known(queue, self._numbers, what="queue")
        known(exchange, self._matchers, what="exchange")
        self._matchers[exchange].add(self._numbers[queue], keys)

    def _unbind(self, exchange: str, queue: str, keys: BoundKeys) -> None:
        known(queue, self._numbers, what="queue")
        known(exchange, self._matchers, what="exchange")
        try:
            self._matchers[exchange].remove(self._numbers[queue], keys)
        except KeyError as error:
            raise BadBinding(f"{queue} is not bound to {exchange} by all of it: {error}") from None


class Line:
    """Queues by their numbers: the place in the line, of which none is given twice."""

    __slots__ = ("_destinations", "_known")

    def __init__(self) -> None:
        self._destinations = ShortDestinations()
        self._known: list[Short] = []

    def know(self, number: int | None, destination: Destination) -> int:
        """Put a queue at its place, or, without one, at the end; its number."""
        short = self._destinations.short(destination)
        if number is None:
            self._known.append(short)
            return len(self._known) - 1
        self._known[number] = short
        return number

    def forget(self, number: int | None) -> None:
        """Leave a place empty."""
        if number is not None:
            self._known[number] = NOBODY_THERE

    def one(self, number: int) -> Destination:
        """Find a queue."""
        return self._destinations.whole(self._known[number])

    def those(self, numbers: Iterable[int]) -> Destinations:
        """Find queues; they come in order."""
        return tuple([self.one(number) for number in sorted(numbers)])


class _Matcher(Protocol):
    """One exchange's bindings: numbers of queues in the line, with their keys."""

    def __init__(self, line: Line) -> None:
        """Begin with none. The line is the table's, and changes with it."""

    def add(self, number: int, keys: BoundKeys) -> None:
        """Bind a queue. Raises `BadBinding` for arguments that can't be."""

    def remove(self, number: int, keys: BoundKeys) -> None:
        """Take bindings of a queue away. Raises `KeyError` where one isn't there."""

    def find(self, publication: Publication) -> Destinations:
        """Find the queues that get a copy, in order."""


class _Direct:
    __slots__ = ("_by_key", "_line")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._by_key: dict[str, Members] = {}

    def add(self, number: int, keys: BoundKeys) -> None:
        for key in keys:
            self._by_key[key] = joined(self._by_key.get(key, NOBODY), number)

    def remove(self, number: int, keys: BoundKeys) -> None:
        for key in keys:
            members = left(self._by_key.get(key, NOBODY), number)
            if members == NOBODY:
                del self._by_key[key]
            else:
                self._by_key[key] = members

    def find(self, publication: Publication) -> Destinations:
        members = self._by_key.get(publication.key)
        if members is None:
            return NOWHERE
        return (self._line.one(members),) if isinstance(members, int) else self._line.those(members)


class _Fanout:
    __slots__ = ("_line", "_numbers")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._numbers: Counter[int] = Counter()  # of a queue's bindings

    def add(self, number: int, keys: BoundKeys) -> None:
        if keys:
            self._numbers[number] += len(keys)

    def remove(self, number: int, keys: BoundKeys) -> None:
        if self._numbers[number] < len(keys):
            raise KeyError(number)
        self._numbers[number] -= len(keys)
        if not self._numbers[number]:
            del self._numbers[number]

    def find(self, publication: Publication) -> Destinations:  # noqa: ARG002 - to everyone, whatever it is
        return self._line.those(self._numbers)


class _Topic:
    __slots__ = ("_line", "_patterns")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._patterns = TopicIndex()

    def add(self, number: int, keys: BoundKeys) -> None:
        for key in keys:
            self._patterns.add(key, number)

    def remove(self, number: int, keys: BoundKeys) -> None:
        for key in keys:
            self._patterns.remove(key, number)

    def find(self, publication: Publication) -> Destinations:
        return self._line.those(self._patterns.matches(publication.key))


class _ByHeaders:
    __slots__ = ("_conditions", "_line")

    def __init__(self, line: Line) -> None:
        self._line = line
        self._conditions = HeadersIndex()

    def add(self, number: int, keys: BoundKeys) -> None:
        for arguments in keys.values():
            self._conditions.add(Conditions.of(of_stored(arguments)), number)

    def remove(self, number: int, keys: BoundKeys) -> None:
        for arguments in keys.values():
            self._conditions.remove(Conditions.of(of_stored(arguments)), number)

    def find(self, publication: Publication) -> Destinations:
        return self._line.those(self._conditions.matches(publication.headers))


_MATCHERS: Mapping[ExchangeType, type[_Matcher]] = {
    ExchangeType.DIRECT: _Direct,
    ExchangeType.FANOUT: _Fanout,
    ExchangeType.TOPIC: _Topic,
    ExchangeType.HEADERS: _ByHeaders,
}
