"""Bindings of queues to exchanges: storage format, changes, and replicas in memory.

A snapshot holds all bindings at one version, in pages. Later changes are stored one by one. Each program builds a
replica with the data that the program needs, and applies the changes: `RoutingTable` routes messages, `SiteBindings`
serves changes and views.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot, UnknownExchange
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType, list_alternates
from sluice.federation.matching.indexes import (
    MAX_ARGUMENTS,
    MAX_KEY_CHARACTERS,
    Arguments,
    BindingIndex,
    BoundKeys,
    Publication,
)
from sluice.federation.matching.metadata import Crossing
from sluice.federation.matching.typed_values import Headers, from_stored, have_same_values, to_stored

if TYPE_CHECKING:  # Adapters are passed in as arguments, so their classes are only imported for type checking.
    from sluice.aws.change_logs import DynamoChangeLog

CACHED_MS = 1_000  # pause between checks of the stored version
BindingId = tuple[str, str, str]
MAX_CHANGE_BYTES = 380 * 1024  # limit of an encoded change; DynamoDB limits an item with its keys to 400 KB
MAX_PAGE = 1_000  # A snapshot's page has at most this many bindings or queues, about a megabyte.
NO_ARGUMENTS: Arguments = {}  # all bindings without arguments share this object


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A binding of a queue to an exchange, identified by exchange, queue and key."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Headers = msgspec.field(default_factory=dict)

    @property
    def id(self) -> BindingId:
        """The binding's unique id within the site."""
        return self.exchange, self.queue, self.key

    def check(self, type_: ExchangeType) -> None:
        """Check the binding for an exchange of this type. Raises `BadBinding` if the binding is invalid."""
        if len(self.key) > MAX_KEY_CHARACTERS:
            raise BadBinding(f"a key of {len(self.key)} characters, more than {MAX_KEY_CHARACTERS}")
        if len(self.arguments) > MAX_ARGUMENTS:
            raise BadBinding(f"{len(self.arguments)} arguments, more than {MAX_ARGUMENTS}")
        try:
            encode((self.key, to_stored(self.arguments)))
        except UnicodeEncodeError as error:
            raise BadBinding(f"key and arguments are no Unicode text: {error}") from None
        type_.index_class.check(self.arguments)


class Destination(Struct, frozen=True, kw_only=True):
    """A queue that can be bound. `crossing` is set if a bridge reads the queue, `feeds_route` if a queue route does."""

    queue: str
    url: str
    crossing: Crossing | None = None
    feeds_route: bool = False

    @property
    def is_fifo(self) -> bool:
        """Whether the queue is a FIFO queue."""
        return self.url.endswith(".fifo")

    @property
    def is_forwarded(self) -> bool:
        """Whether the queue's messages are forwarded to a peer, and so must keep their metadata."""
        return self.crossing is not None or self.feeds_route


class Bindings(Struct, frozen=True, kw_only=True):
    """A site's exchanges, bound queues, and bindings' arguments by exchange, queue and key.

    The same class is one page of a snapshot: the first page has the exchanges, later pages have more queues or
    bindings.
    """

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}


class BindingsChange(Struct, frozen=True, kw_only=True):
    """The difference between two successive versions.

    The queues in `queues` are new or updated, and those in `forgotten` have no bindings left. `unbound` keys, with
    their arguments, are removed before `bound` keys are added, so a key in both gets new arguments.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Destination, ...] = ()
    unbound: Mapping[str, Mapping[str, BoundKeys]] = {}
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}
    forgotten: tuple[str, ...] = ()
    gone_exchanges: tuple[str, ...] = ()


_PAGE = Format(kind="bindings", version=1, type=Bindings)
CHANGE = Format(kind="bindings change", version=1, type=BindingsChange)


def iter_bound_queues(bound: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Yield the exchange, the queue and the value of each entry of a nested mapping."""
    return ((exchange, queue, keys) for exchange, queues in bound.items() for queue, keys in queues.items())


def encode_page(page: Bindings) -> bytes:
    """Encode bindings, or a page of them. Equal bindings give equal bytes."""
    return _PAGE.pack(page)


class BindingsUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The bindings' changes since a requested version, one for each version up to `version`.

    If the requested version is None or too old, the changes start after `base`, the version of `snapshot`. `snapshot`
    is None if the site has no snapshot yet.
    """

    version: int
    changes: Sequence[bytes] = ()
    base: int | None = None
    snapshot: bytes | None = None


class Replica(Protocol):
    """The bindings at one version, in the form that a program needs."""

    version: int

    def apply(self, change: BindingsChange) -> None:
        """Apply the change to the next version. After a `BadBinding` error, the replica is unusable."""


R = TypeVar("R", bound=Replica)
T = TypeVar("T")


def build_replica(snapshot: bytes | None, make: Callable[[Bindings], R], *, version: int | None = None) -> R:
    """Build a replica from a snapshot, with `version` or the snapshot's version. Raises `BadSnapshot`.

    `make` creates the replica from the first page, or from a new site's bindings. Only one page is in memory at a time.
    """
    try:
        page, rest = (Bindings(), b"") if snapshot is None else _PAGE.unpack_first(snapshot)
        replica = make(page)
        while rest:
            page, rest = _PAGE.unpack_first(rest)
            replica.apply(BindingsChange(exchanges=page.exchanges, queues=page.queues, bound=page.bound))
    except BadBinding as error:
        raise BadSnapshot(str(error)) from None
    if version is not None:
        replica.version = version
    return replica


def apply_changes(replica: Replica, changes: Iterable[bytes]) -> None:
    """Apply stored changes, each to the next version. After a `BadSnapshot` error, the replica is unusable."""
    for stored in changes:
        try:
            replica.apply(CHANGE.unpack(stored))
        except BadBinding as error:
            raise BadSnapshot(f"change {replica.version + 1} of the bindings: {error}") from None
        replica.version += 1


@dataclass(slots=True)
class CachedReplica(Generic[R]):
    """Caches a replica, which changes in place.

    `make` builds the replica from a snapshot; later changes are applied to it. With a clock, the log of changes is
    checked once a second; without a clock, at each read.
    """

    log: "DynamoChangeLog"
    make: Callable[[Bindings], R]
    now_ms: Callable[[], int] | None = None
    _replica: R | None = None
    _checked_at_ms: int = 0

    def value(self) -> R:
        """Return the current replica. If nothing has changed, this costs one small read. Raises `BadSnapshot`."""
        now_ms = 0 if self.now_ms is None else self.now_ms()
        replica = self._replica
        if replica is not None and self.now_ms is not None and now_ms - self._checked_at_ms < CACHED_MS:
            return replica
        news = self.log.read_since(None if replica is None else replica.version)
        self._replica = None  # After an error, the cache must not have a partly applied change.
        if replica is None or news.base is not None:
            replica = None  # this frees memory first, because two replicas don't fit
            replica = build_replica(news.snapshot, self.make, version=news.base or 0)
        apply_changes(replica, news.changes)
        self._replica, self._checked_at_ms = replica, now_ms
        return replica

    def advance(self, change: bytes) -> R:
        """Apply the change to the next version, which this program has just written. Raises `BadSnapshot`."""
        replica, self._replica = self._replica, None
        if replica is None:
            return self.value()
        apply_changes(replica, [change])
        self._replica = replica
        return replica


class QueueTable(MutableMapping[str, Destination]):
    """Bound queues by name, stored in compact form because there may be 100,000 of them.

    The URLs of a site's queues differ only in the queue's name, so for most queues only the name is stored.
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
        """Return the stored string of a queue's name, to save memory. Raises `BadBinding` if the queue is missing."""
        short = self._short.get(queue)
        if short is None:
            raise BadBinding(f"no such queue: {queue}")
        return short if isinstance(short, str) else short.queue


class BindingsReplica:
    """The exchanges and queues of a replica. Subclasses store the bindings."""

    __slots__ = ("_exchanges", "_queues", "version")

    def __init__(self, bindings: Bindings) -> None:
        """Load bindings. Raises `BadBinding` if a binding refers to a missing exchange or queue."""
        self.version = bindings.version
        self._exchanges: dict[str, Exchange] = {}
        self._queues = QueueTable()
        self.apply(BindingsChange(exchanges=bindings.exchanges, queues=bindings.queues, bound=bindings.bound))

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raises `BadBinding` if the exchange is missing."""
        if name not in self._exchanges:
            raise BadBinding(f"no such exchange: {name}")
        return self._exchanges[name]

    def apply(self, change: BindingsChange) -> None:
        """Apply the change to the next version, as `Replica.apply` describes."""
        self._exchanges.update((exchange.name, exchange) for exchange in change.exchanges)
        for exchange in change.exchanges:
            list_alternates(exchange.name, self._exchanges)
        for destination in change.queues:
            self._queues[destination.queue] = destination
        for name, queue, keys in iter_bound_queues(change.unbound):
            self._unbind(self.exchange(name), self._queues.name(queue), keys)
        for name, queue, keys in iter_bound_queues(change.bound):
            self._bind(self.exchange(name), self._queues.name(queue), keys)
        for queue in change.forgotten:
            self._queues.pop(queue, None)
        for name in change.gone_exchanges:
            self._exchanges.pop(name, None)

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Add bindings of a queue to an exchange. Raises `BadBinding` for invalid arguments."""
        raise NotImplementedError

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        """Remove bindings of a queue to an exchange. Raises `BadBinding` if a binding is missing."""
        raise NotImplementedError


class RoutingTable(BindingsReplica):
    """A replica of a site's bindings, which finds the queues that get a published message."""

    __slots__ = ("_indexes", "_indexes_by_exchange")

    def __init__(self, bindings: Bindings) -> None:
        """Compile all bindings. Raises `BadBinding` if a binding refers to a missing exchange or queue."""
        self._indexes: dict[str, BindingIndex] = {}
        self._indexes_by_exchange: dict[str, tuple[BindingIndex, ...]] = {}
        super().__init__(bindings)

    def route(self, publication: Publication) -> tuple[Destination, ...]:
        """Return the queues that get a copy of the message, each once, in order of names.

        Returns none if neither the exchange nor its alternates match. A bridge's `crossing` is checked later: a message
        that it drops counts as routed and doesn't go to an alternate. Raises `UnknownExchange`.
        """
        indexes = self._indexes_by_exchange.get(publication.exchange)
        if indexes is None:
            raise UnknownExchange(publication.exchange)
        for index in indexes:
            queues = index.find_queues(publication)
            if queues:
                return tuple([self._queues[queue] for queue in sorted(queues)])
        return ()

    def apply(self, change: BindingsChange) -> None:
        """Apply the change to the next version, as `Replica.apply` describes."""
        for exchange in change.exchanges:
            self._indexes.setdefault(exchange.name, exchange.type.index_class())
        super().apply(change)
        for name in change.gone_exchanges:
            self._indexes.pop(name, None)
        if change.exchanges or change.gone_exchanges:
            alternates = {name: list_alternates(name, self._exchanges) for name in self._exchanges}
            self._indexes_by_exchange = {
                name: tuple(self._indexes[stop] for stop in stops) for name, stops in alternates.items()
            }

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        self._indexes[exchange.name].add(queue, keys)

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        try:
            self._indexes[exchange.name].remove(queue, keys)
        except KeyError as error:
            raise BadBinding(f"{queue} is not bound to {exchange.name} by all of it: {error}") from None


class SiteBindings(BindingsReplica):
    """A copy in memory of all stored bindings, to change or list them."""

    __slots__ = ("_bound", "count")

    def __init__(self, bindings: Bindings) -> None:
        """Load bindings. Raises `BadBinding` if a binding refers to a missing exchange or queue."""
        self._bound: dict[str, dict[str, dict[str, Arguments]]] = {}
        self.count = 0  # number of bindings
        super().__init__(bindings)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All exchanges of the site."""
        return tuple(self._exchanges.values())

    @property
    def queues(self) -> tuple[Destination, ...]:
        """All bound queues of the site."""
        return tuple(self._queues.values())

    @property
    def feeding_queues(self) -> frozenset[str]:
        """The names of the bound queues that are marked as read by queue routes."""
        return frozenset(destination.queue for destination in self._queues.values() if destination.feeds_route)

    def __iter__(self) -> Iterator[Binding]:
        """Iterate over all bindings."""
        for exchange in self._bound:
            yield from self.of(exchange)

    def of(self, exchange: str) -> Iterator[Binding]:
        """Iterate over an exchange's bindings. A missing exchange has no bindings."""
        for queue, keys in self.get_keys_by_queue(exchange).items():
            for key, arguments in keys.items():
                yield Binding(exchange=exchange, queue=queue, key=key, arguments=from_stored(arguments))

    def destination(self, queue: str) -> Destination | None:
        """Return the bound queue with this name; None if no such queue is bound."""
        return self._queues.get(queue)

    def sample_queues(self, number: int, *, turn: int) -> list[str]:
        """Return up to `number` bound queues. Each `turn` returns the next queues."""
        turns = -(-len(self._queues) // number)
        start = turn % turns * number if turns else 0
        return list(islice(self._queues, start, start + number))

    def keys(self, exchange: str, queue: str) -> BoundKeys:
        """Return the keys that bind a queue to an exchange, with their arguments."""
        return self.get_keys_by_queue(exchange).get(queue, {})

    def get_keys_by_queue(self, exchange: str) -> Mapping[str, BoundKeys]:
        """Return the keys that bind queues to an exchange, by queue. A missing exchange has no bindings."""
        return self._bound.get(exchange, {})

    def keys_by_exchange(self, queue: str) -> Mapping[str, BoundKeys]:
        """Return the keys that bind a queue, by exchange."""
        return {exchange: dict(queues[queue]) for exchange, queues in self._bound.items() if queue in queues}

    def is_missing(self, binding: Binding) -> bool:
        """Whether the binding is missing. Raises `BadBinding` if it is invalid, or exists with other arguments."""
        binding.check(self.exchange(binding.exchange).type)
        existing = self.keys(binding.exchange, binding.queue).get(binding.key)
        if existing is None:
            return True
        if not have_same_values(binding.arguments, from_stored(existing)):
            raise BadBinding(f"{binding.queue} is bound to {binding.exchange} by {binding.key!r} with other arguments")
        return False

    def snapshot(self) -> Bindings:
        """Return all bindings as one snapshot. The next change makes this object invalid."""
        return Bindings(version=self.version, exchanges=self.exchanges, queues=self.queues, bound=self._bound)

    def pages(self) -> Iterator[Bindings]:
        """Yield the pages of a snapshot, each of limited size."""
        if max(self.count, len(self._queues)) <= MAX_PAGE:
            yield self.snapshot()
            return
        yield Bindings(version=self.version, exchanges=self.exchanges)
        for queues in _split_into_batches(self._queues.values()):
            yield Bindings(version=self.version, exchanges=(), queues=queues)
        entries = (
            (exchange, queue, key, arguments)
            for exchange, queue, keys in iter_bound_queues(self._bound)
            for key, arguments in keys.items()
        )
        for batch in _split_into_batches(entries):
            bound: dict[str, dict[str, dict[str, Arguments]]] = {}
            for exchange, queue, key, arguments in batch:
                bound.setdefault(exchange, {}).setdefault(queue, {})[key] = arguments
            yield Bindings(version=self.version, exchanges=(), bound=bound)

    def apply(self, change: BindingsChange) -> None:
        """Apply the change to the next version, as `Replica.apply` describes."""
        super().apply(change)
        for name in change.gone_exchanges:
            self._bound.pop(name, None)

    def _bind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        if exchange.type.index_class.follows_arguments:
            for arguments in keys.values():
                exchange.type.index_class.check(from_stored(arguments))
        if not keys:
            return
        bound = self._bound.setdefault(exchange.name, {}).setdefault(queue, {})
        before = len(bound)
        bound.update((key, arguments or NO_ARGUMENTS) for key, arguments in keys.items())
        self.count += len(bound) - before

    def _unbind(self, exchange: Exchange, queue: str, keys: BoundKeys) -> None:
        queues = self._bound.get(exchange.name, {})
        bound = queues.get(queue, {})
        for key in keys:
            if bound.pop(key, None) is None:
                raise BadBinding(f"{queue} is not bound to {exchange.name} by {key!r}")
            self.count -= 1
        if queue in queues and not bound:
            del queues[queue]
            if not queues:
                del self._bound[exchange.name]


def _split_into_batches(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(items)
    while batch := tuple(islice(left, MAX_PAGE)):
        yield batch
