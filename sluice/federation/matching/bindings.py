"""Bindings: which queue gets what of an exchange; all of a site's as they are stored, and as they change.

A snapshot is all of them at one version, in pages; what came after it is stored as changes. Whoever works with them
makes a replica of its own, with what it needs, once, and takes in what changes: `RoutingTable` is the one that messages
find their way by, `SiteBindings` the one of who changes them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from sluice.codec import Format, Struct, encode
from sluice.errors import BadBinding, BadSnapshot, UnknownExchange
from sluice.federation.matching.exchanges import STANDARD_EXCHANGES, Exchange, ExchangeType, way
from sluice.federation.matching.indexes import (
    MAX_ARGUMENTS,
    MAX_KEY_CHARACTERS,
    Arguments,
    BindingIndex,
    BoundKeys,
    Publication,
)
from sluice.federation.matching.metadata import Crossing
from sluice.federation.matching.typed_values import Headers, of_stored, same, to_stored

if TYPE_CHECKING:  # at run time it is given its adapter, and imports none
    from sluice.aws.change_logs import DynamoChangeLog

CACHED_MS = 1_000  # what is stored is looked at again after so long
BindingId = tuple[str, str, str]
MAX_CHANGE_BYTES = 380 * 1024  # of a change as it is stored: an item has 400 KB, keys and all
MAX_PAGE = 1_000  # bindings, or queues, of a snapshot's page: in memory it takes a megabyte
NO_ARGUMENTS: Arguments = {}  # one for all bindings without any


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's claim on an exchange's messages. Known by exchange, queue and key; the arguments belong to it."""

    exchange: str
    queue: str
    key: str = ""
    arguments: Headers = msgspec.field(default_factory=dict)

    @property
    def id(self) -> BindingId:
        """What no other binding of the site has."""
        return self.exchange, self.queue, self.key

    def check(self, type_: ExchangeType) -> None:
        """Check the binding to an exchange of the type. Raises `BadBinding` where it can't be one."""
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
    """A queue that can be bound. `crossing` where it is a bridge's; `feeds_route` where a queue route reads it."""

    queue: str
    url: str
    crossing: Crossing | None = None
    feeds_route: bool = False

    @property
    def is_fifo(self) -> bool:
        """Whether SQS keeps its messages in order."""
        return self.url.endswith(".fifo")

    @property
    def goes_on(self) -> bool:
        """Whether the queue's messages go to a peer, and so need their metadata whole."""
        return self.crossing is not None or self.feeds_route


class Bindings(Struct, frozen=True, kw_only=True):
    """A site's exchanges, its bound queues, and by exchange, queue and key the arguments of its bindings.

    Or a page of them: the first has the exchanges, and each the queues of its bindings that no page before has.
    """

    version: int = 0
    exchanges: tuple[Exchange, ...] = STANDARD_EXCHANGES
    queues: tuple[Destination, ...] = ()
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}


class BindingsChange(Struct, frozen=True, kw_only=True):
    """One version's difference to the version before, with all that a replica needs to follow.

    `queues` are new or known anew, the `forgotten` are bound nowhere any more. `unbound` are keys with the arguments
    that they had, by exchange and queue; they go before `bound` ones come, so a key in both has new arguments.
    """

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Destination, ...] = ()
    unbound: Mapping[str, Mapping[str, BoundKeys]] = {}
    bound: Mapping[str, Mapping[str, BoundKeys]] = {}
    forgotten: tuple[str, ...] = ()
    gone_exchanges: tuple[str, ...] = ()


_PAGE = Format(kind="bindings", version=1, type=Bindings)
CHANGE = Format(kind="bindings change", version=1, type=BindingsChange)


def parts_of(bound: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    """Go through what is by exchange and queue."""
    return ((exchange, queue, keys) for exchange, queues in bound.items() for queue, keys in queues.items())


def pack(page: Bindings) -> bytes:
    """Write bindings for storage, or a page of them, which others may follow. Equal ones give equal bytes."""
    return _PAGE.pack(page)


def _unpack(snapshot: bytes | None) -> Iterator[Bindings]:
    """Read what `pack` wrote, page by page; what every site begins with where there is nothing."""
    if snapshot is None:
        yield Bindings()
        return
    page, rest = _PAGE.unpack_first(snapshot)
    yield page
    while rest:
        page, rest = _PAGE.unpack_first(rest)
        yield page


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What has come in the bindings' log after a version. `changes` lead to `version`, one by one.

    They begin at the version that was asked for; or, where that is too long ago, or none was, at `base`, the version
    of `snapshot`, which is None for a site where there never was one.
    """

    version: int
    changes: Sequence[bytes] = ()
    base: int | None = None
    snapshot: bytes | None = None


class Replica(Protocol):
    """Bindings as one program needs them, at one version."""

    version: int

    def apply(self, change: BindingsChange) -> None:
        """Take in the next version. Raises `BadBinding` where it isn't a change of this one: then nothing is known."""


R = TypeVar("R", bound=Replica)
T = TypeVar("T")


def replica_of(snapshot: bytes | None, make: Callable[[Bindings], R], *, version: int | None = None) -> R:
    """Make a replica of what is stored, at `version`, or at the one that the snapshot says. Raises `BadSnapshot`.

    `make` gets the first page; there is never more than one in memory.
    """
    pages = _unpack(snapshot)
    try:
        replica = make(next(pages))
        for page in pages:
            replica.apply(BindingsChange(exchanges=page.exchanges, queues=page.queues, bound=page.bound))
    except BadBinding as error:
        raise BadSnapshot(str(error)) from None
    if version is not None:
        replica.version = version
    return replica


def follow(replica: Replica, changes: Iterable[bytes]) -> None:
    """Take in stored changes, each the next version. Raises `BadSnapshot`: the replica is of no use then."""
    for stored in changes:
        try:
            replica.apply(CHANGE.unpack(stored))
        except BadBinding as error:
            raise BadSnapshot(f"change {replica.version + 1} of the bindings: {error}") from None
        replica.version += 1


@dataclass(slots=True)
class Followed(Generic[R]):
    """A replica of the bindings, which changes in place: `make` compiles a snapshot once, then changes are taken in.

    With a clock the log is asked once a second, without one each time.
    """

    log: "DynamoChangeLog"
    make: Callable[[Bindings], R]
    now_ms: Callable[[], int] | None = None
    _replica: R | None = None
    _checked_at_ms: int = 0

    def value(self) -> R:
        """Read the replica; where nothing has changed, that costs one small read. Raises `BadSnapshot`."""
        now_ms = 0 if self.now_ms is None else self.now_ms()
        replica = self._replica
        if replica is not None and self.now_ms is not None and now_ms - self._checked_at_ms < CACHED_MS:
            return replica
        news = self.log.since(None if replica is None else replica.version)
        self._replica = None  # whatever goes wrong from here on, half of a change is never kept
        if replica is None or news.base is not None:
            replica = None  # the old one goes before there is a new one: there isn't memory for two
            replica = replica_of(news.snapshot, self.make, version=news.base or 0)
        follow(replica, news.changes)
        self._replica, self._checked_at_ms = replica, now_ms
        return replica

    def advance(self, change: bytes) -> R:
        """Take in the next version, which was just written here. Raises `BadSnapshot`."""
        replica, self._replica = self._replica, None
        if replica is None:
            return self.value()
        follow(replica, [change])
        self._replica = replica
        return replica


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

    __slots__ = ("_bound", "count")

    def __init__(self, bindings: Bindings) -> None:
        """Take bindings in. Raises `BadBinding` where something refers to what isn't there."""
        self._bound: dict[str, dict[str, dict[str, Arguments]]] = {}
        self.count = 0  # of bindings
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


def _batches(all_: Iterable[T]) -> Iterator[tuple[T, ...]]:
    left = iter(all_)
    while batch := tuple(islice(left, MAX_PAGE)):
        yield batch
