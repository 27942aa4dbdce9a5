"""Replicas of a site's bindings: the one that messages find their way by, and the one of who changes them. Pure.

Each is made of a snapshot once, and takes in what changes; what is stored is `bindings`'.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import TypeVar

from sluice.errors import BadBinding, UnknownExchange
from sluice.federation.matching.bindings import Binding, Bindings, BindingsChange, Destination, parts_of
from sluice.federation.matching.exchanges import Exchange, way
from sluice.federation.matching.indexes import Arguments, BindingIndex, BoundKeys, Publication
from sluice.federation.matching.typed_values import of_stored, same

MAX_PAGE = 1_000  # bindings, or queues, of a snapshot's page: in memory it takes a megabyte
NO_ARGUMENTS: Arguments = {}  # one for all bindings without any


class QueueTable(MutableMapping[str, Destination]):
    """Bound queues by name, in little memory: there may be a hundred thousand.

    The URLs of a site's queues are all one text and the queue's name, as the first queue's is, and most queues have
    nothing else to be known of: of these the name is enough.
    """

    __slots__ = ("_base", "_short")

    def __init__(self) -> None:
        self._base: str | None = None
        self._short: dict[str, Destination | str] = {}

    def __getitem__(self, queue: str) -> Destination:
        short = self._short[queue]
        return Destination(queue=short, url=f"{self._base}{short}") if isinstance(short, str) else short

    def __setitem__(self, queue: str, destination: Destination) -> None:
        if self._base is None:
            self._base = destination.url.removesuffix(queue)
        is_plain = destination == Destination(queue=queue, url=f"{self._base}{queue}")
        self._short[queue] = queue if is_plain else destination

    def __delitem__(self, queue: str) -> None:
        del self._short[queue]

    def __iter__(self) -> Iterator[str]:
        return iter(self._short)

    def __len__(self) -> int:
        return len(self._short)

    def name(self, queue: str) -> str:
        """Give the one text in memory that is the queue's name. Raises `BadBinding` for one that isn't there."""
        short = self._short.get(queue)
        if short is None:
            raise BadBinding(f"no such queue: {queue}")
        return short if isinstance(short, str) else short.queue


class BindingsReplica:
    """What every replica knows that has queues: a `Replica`, changed in place. Subclasses know what is bound."""

    __slots__ = ("_exchanges", "_queues", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Take bindings in. Raises `BadBinding` where something refers to what isn't there."""
        self.version = bindings.version
        self._exchanges: dict[str, Exchange] = {}
        self._queues = QueueTable()
        self.apply(BindingsChange(exchanges=bindings.exchanges, queues=bindings.queues, bound=bindings.bound))

    def exchange(self, name: str) -> Exchange:
        """Find the exchange of this name. Raises `BadBinding` where there is none."""
        if name not in self._exchanges:
            raise BadBinding(f"no such exchange: {name}")
        return self._exchanges[name]

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        self._exchanges.update((exchange.name, exchange) for exchange in change.exchanges)
        for exchange in change.exchanges:
            way(exchange.name, self._exchanges)
        for destination in change.queues:
            self._queues[destination.queue] = destination
        for name, queue, keys in parts_of(change.unbound):
            self._unbind(self.exchange(name), self._queues.name(queue), keys)
        for name, queue, keys in parts_of(change.bound):
            self._bind(self.exchange(name), self._queues.name(queue), keys)
        for queue in change.forgotten:
            self._queues.pop(queue, None)
        for name in change.gone_exchanges:
            self._exchanges.pop(name, None)

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Note bindings. Raises `BadBinding` for arguments that can't be."""
        raise NotImplementedError

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Forget bindings. Raises `BadBinding` where one isn't there."""
        raise NotImplementedError


class RoutingTable(BindingsReplica):
    """Where one site's messages go."""

    __slots__ = ("_indexes", "_ways")

    def __init__(self, bindings: Bindings) -> None:
        """Compile all of the bindings. Raises `BadBinding` for what refers to what isn't there."""
        self._indexes: dict[str, BindingIndex] = {}
        self._ways: dict[str, tuple[BindingIndex, ...]] = {}
        super().__init__(bindings)

    def route(self, publication: Publication) -> tuple[Destination, ...]:
        """Find the queues that get a copy, each once, in order of names.

        None, where neither the exchange nor an alternate has a match. Whether a bridge's queue may have it is the
        bridge's `crossing` to say: a message that is held back there counts as routed, and goes to no alternate. Raises
        `UnknownExchange`.
        """
        indexes = self._ways.get(publication.exchange)
        if indexes is None:
            raise UnknownExchange(publication.exchange)
        for index in indexes:
            queues = index.matches(publication)
            if queues:
                return tuple([self._queues[queue] for queue in sorted(queues)])
        return ()

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        for exchange in change.exchanges:
            self._indexes.setdefault(exchange.name, exchange.type.index_class())
        super().apply(change)
        for name in change.gone_exchanges:
            self._indexes.pop(name, None)
        if change.exchanges or change.gone_exchanges:
            ways = {name: way(name, self._exchanges) for name in self._exchanges}
            self._ways = {name: tuple(self._indexes[stop] for stop in stops) for name, stops in ways.items()}

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        self._indexes[exchange.name].add(queue, keys)

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        try:
            self._indexes[exchange.name].remove(queue, keys)
        except KeyError as error:
            raise BadBinding(f"{queue} is not bound to {exchange.name} by all of it: {error}") from None


class SiteBindings(BindingsReplica):
    """A replica of all that is stored."""

    __slots__ = ("_bound", "_numbers")

    def __init__(self, bindings: Bindings) -> None:
        """Take bindings in. Raises `BadBinding` where something refers to what isn't there."""
        self._bound: dict[str, dict[str, dict[str, Arguments]]] = {}
        self._numbers: Counter[str] = Counter()  # of a queue's bindings
        super().__init__(bindings)

    # What there is

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All of the site's."""
        return tuple(self._exchanges.values())

    @property
    def queues(self) -> tuple[Destination, ...]:
        """The queues that are bound."""
        return tuple(self._queues.values())

    @property
    def fed(self) -> frozenset[str]:
        """The bound queues that are noted as read by queue routes."""
        return frozenset(destination.queue for destination in self._queues.values() if destination.feeds_route)

    @property
    def count(self) -> int:
        """How many bindings there are."""
        return self._numbers.total()

    def __iter__(self) -> Iterator[Binding]:
        """Go through every binding."""
        for exchange in self._bound:
            yield from self.of(exchange)

    def of(self, exchange: str) -> Iterator[Binding]:
        """Go through one exchange's bindings; none where there is no such exchange."""
        for queue, keys in self.keys_at(exchange).items():
            for key, arguments in keys.items():
                yield Binding(exchange=exchange, queue=queue, key=key, arguments=of_stored(arguments))

    def destination(self, queue: str) -> Destination | None:
        """Find the bound queue of this name."""
        return self._queues.get(queue)

    def some_queues(self, number: int, *, turn: int) -> list[str]:
        """Name so many of the bound queues, others each turn; all of them where there aren't more."""
        turns = -(-len(self._queues) // number)
        start = turn % turns * number if turns else 0
        return list(islice(self._queues, start, start + number))

    def keys(self, exchange: str, queue: str) -> BoundKeys:
        """Find the keys by which a queue is bound to an exchange, with the arguments."""
        return self.keys_at(exchange).get(queue, {})

    def keys_at(self, exchange: str) -> Mapping[str, BoundKeys]:
        """Find the keys by which queues are bound to an exchange, by queue; none where there is no such exchange."""
        return self._bound.get(exchange, {})

    def keys_of(self, queue: str) -> Mapping[str, BoundKeys]:
        """Find the keys by which a queue is bound now, by exchange."""
        return {exchange: dict(queues[queue]) for exchange, queues in self._bound.items() if queue in queues}

    def number_of(self, queue: str) -> int:
        """How many bindings a queue has."""
        return self._numbers[queue]

    def lacks(self, binding: Binding) -> bool:
        """Whether the binding is to be added: not where it is there already.

        Raises `BadBinding` where it can't be one of its exchange, or is there with other arguments: unbind it first.
        """
        binding.check(self.exchange(binding.exchange).type)
        existing = self.keys(binding.exchange, binding.queue).get(binding.key)
        if existing is None:
            return True
        if not same(binding.arguments, of_stored(existing)):
            raise BadBinding(f"{binding.queue} is bound to {binding.exchange} by {binding.key!r} with other arguments")
        return False

    def snapshot(self) -> Bindings:
        """Give all of it at once; of no use after the next change."""
        return Bindings(version=self.version, exchanges=self.exchanges, queues=self.queues, bound=self._bound)

    def pages(self) -> Iterator[Bindings]:
        """Give all of it as it is stored: what is small in one page, else no page is large."""
        if max(self.count, len(self._queues)) <= MAX_PAGE:
            yield self.snapshot()
            return
        yield Bindings(version=self.version, exchanges=self.exchanges)
        for queues in _batches(self._queues.values()):
            yield Bindings(version=self.version, exchanges=(), queues=queues)
        for batch in _batches(self._entries()):
            bound: dict[str, dict[str, dict[str, Arguments]]] = {}
            for exchange, queue, key, arguments in batch:
                bound.setdefault(exchange, {}).setdefault(queue, {})[key] = arguments
            yield Bindings(version=self.version, exchanges=(), bound=bound)

    def _entries(self) -> Iterator[tuple[str, str, str, Arguments]]:
        for exchange, queue, keys in parts_of(self._bound):
            for key, arguments in keys.items():
                yield exchange, queue, key, arguments

    # What changes

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version, as `Replica` says."""
        super().apply(change)
        for name in change.gone_exchanges:
            self._bound.pop(name, None)

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        if exchange.type.index_class.follows_arguments:
            for arguments in keys.values():
                exchange.type.index_class.check(of_stored(arguments))
        if not keys:
            return
        bound = self._bound.setdefault(exchange.name, {}).setdefault(queue, {})
        before = len(bound)
        bound.update((key, arguments or NO_ARGUMENTS) for key, arguments in keys.items())
        self._numbers[queue] += len(bound) - before

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        queues = self._bound.get(exchange.name, {})
        bound = queues.get(queue, {})
        for key in keys:
            if bound.pop(key, None) is None:
                raise BadBinding(f"{queue} is not bound to {exchange.name} by {key!r}")
            self._numbers[queue] -= 1
        if queue in queues and not bound:
            del queues[queue]
            if not queues:
                del self._bound[exchange.name]
        if not self._numbers[queue]:
            del self._numbers[queue]


T = TypeVar("T")


def _batches(all_: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(all_)
    while batch := tuple(islice(left, MAX_PAGE)):
        yield batch
